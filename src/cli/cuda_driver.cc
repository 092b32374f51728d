#include "cli/cuda_driver.h"

#include <dlfcn.h>

#include <array>
#include <memory>

namespace dba::cli {
namespace {

// CUdevice_attribute values of the driver's interface.
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;

struct LibraryCloser {
  void operator()(void* library) const {
    dlclose(library);
  }
};
using Library = std::unique_ptr<void, LibraryCloser>;

// A driver function: an int status, 0 for success.
template <typename... Args>
bool call(const Library& library, const char* name, Args... args) {
  auto function = reinterpret_cast<int (*)(Args...)>(dlsym(library.get(), name));
  return function != nullptr && function(args...) == 0;
}

}  // namespace

std::string cuda_version_text(int64_t version) {
  return version == 0 ? "" : std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

CudaDriver ask_cuda_driver() {
  CudaDriver driver;
  Library library(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
  int version = 0;
  if (!library || !call(library, "cuDriverGetVersion", &version)) {
    return driver;
  }
  driver.version = cuda_version_text(version);
  int count = 0;
  if (!call(library, "cuInit", 0u) || !call(library, "cuDeviceGetCount", &count)) {
    return driver;
  }
  for (int index = 0; index < count; ++index) {
    CudaDevice device;
    std::array<char, 256> name{};
    size_t memory = 0;
    call(library, "cuDeviceGetName", name.data(), static_cast<int>(name.size()), index);
    call(library, "cuDeviceTotalMem_v2", &memory, index);
    call(library, "cuDeviceGetAttribute", &device.major, kComputeCapabilityMajor, index);
    call(library, "cuDeviceGetAttribute", &device.minor, kComputeCapabilityMinor, index);
    device.name = name.data();
    device.memory_bytes = memory;
    driver.devices.push_back(device);
  }
  return driver;
}

}  // namespace dba::cli

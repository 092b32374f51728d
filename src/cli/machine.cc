#include "cli/machine.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/version.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "bytes/count.h"
#include "cli/build.h"
#include "cli/cuda_driver.h"
#include "dba/backend.h"

namespace dba::cli {
namespace {

std::string processor_name() {
  std::ifstream stream("/proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    const auto colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown processor";
}

std::string gibibytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f GiB", bytes / (1 << 30));
  return text;
}

std::string caches() {
  const auto kibibytes = [](int name) { return std::to_string(std::max(0L, sysconf(name)) / 1024) + " KiB"; };
  return "L2 " + kibibytes(_SC_LEVEL2_CACHE_SIZE) + ", L3 " + kibibytes(_SC_LEVEL3_CACHE_SIZE);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> describe_machine(at::Device device) {
  const Build built = build();
  std::vector<std::pair<std::string, std::string>> facts = {
      {"dba", built.version + " (" + built.commit + ")"},
      {"compiler", built.compiler},
      {"torch", TORCH_VERSION},
      {"backend", to_string(backend())},
      {"CPU", processor_name() + "; " + bytes::counted(std::thread::hardware_concurrency(), "processor") + ", " +
                  caches() + "; torch uses " + at::get_cpu_capability()},
      {"memory", gibibytes(static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)))},
      {"threads", std::to_string(at::get_num_threads())}};
  if (device.is_cuda()) {
    const CudaDriver driver = ask_cuda_driver();
    const auto index = static_cast<size_t>(device.has_index() ? device.index() : 0);
    if (index < driver.devices.size()) {
      const auto& gpu = driver.devices[index];
      facts.emplace_back("GPU", gpu.name + ", compute capability " + std::to_string(gpu.major) + "." +
                                    std::to_string(gpu.minor) + ", " +
                                    gibibytes(static_cast<double>(gpu.memory_bytes)));
    }
    facts.emplace_back("CUDA", "runtime " + cuda_version_text(at::detail::getCUDAHooks().versionCUDART()) +
                                   ", driver " + driver.version + ", own kernels " +
                                   (built.kernels_cuda.empty() ? "not built" : "built with " + built.kernels_cuda));
  }
  return facts;
}

}  // namespace dba::cli

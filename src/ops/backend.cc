#include "dba/backend.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>

namespace dba {
namespace {

Backend backend_from_environment() {
  const char* name = std::getenv("DBA_BACKEND");
  return name == nullptr ? Backend::automatic : parse_backend(name);
}

std::atomic<Backend>& chosen_backend() {
  static std::atomic<Backend> chosen{backend_from_environment()};
  return chosen;
}

std::atomic<CudaKernels>& chosen_cuda_kernels() {
  const char* name = std::getenv("DBA_CUDA_KERNELS");
  static std::atomic<CudaKernels> chosen{name == nullptr ? CudaKernels::automatic : parse_cuda_kernels(name)};
  return chosen;
}

}  // namespace

CudaKernels cuda_kernels() {
  return chosen_cuda_kernels().load();
}

void set_cuda_kernels(CudaKernels kernels) {
  chosen_cuda_kernels().store(kernels);
}

Backend backend() {
  return chosen_backend().load();
}

void set_backend(Backend backend) {
  chosen_backend().store(backend);
}

CudaKernels parse_cuda_kernels(const std::string& name) {
  if (name == "off") {
    return CudaKernels::off;
  }
  if (name == "auto") {
    return CudaKernels::automatic;
  }
  TORCH_CHECK(name == "general", "dba::parse_cuda_kernels: name must be off, auto or general, got \"", name, "\"");
  return CudaKernels::general;
}

std::string to_string(CudaKernels kernels) {
  return kernels == CudaKernels::off ? "off" : kernels == CudaKernels::automatic ? "auto" : "general";
}

Backend parse_backend(const std::string& name) {
  if (name == "auto") {
    return Backend::automatic;
  }
  if (name == "reference") {
    return Backend::reference;
  }
  if (name == "fused") {
    return Backend::fused;
  }
  TORCH_CHECK(false, "dba::parse_backend: name must be auto, reference or fused, got \"", name, "\"");
}

std::string to_string(Backend backend) {
  switch (backend) {
    case Backend::automatic:
      return "auto";
    case Backend::reference:
      return "reference";
    case Backend::fused:
      return "fused";
  }
  return "?";
}

}  // namespace dba

#pragma once

#include <string>

namespace dba {

/// Which implementation the operators use.
///   automatic  a fused kernel where one exists for the device, dtype and shape, else the reference
///   reference  plain ATen everywhere: the truth that the others are compared with
///   fused      a fused kernel, or an error that says what is missing
enum class Backend { automatic, reference, fused };

/// The choice for the whole process; `automatic` at first, or what the environment variable DBA_BACKEND says.
Backend backend();
void set_backend(Backend backend);

/// "auto", "reference", "fused".
Backend parse_backend(const std::string& name);
std::string to_string(Backend backend);

/// Which fused CUDA kernels the operators use where the backend is `automatic`.
///   off        none: plain ATen on the GPU
///   automatic  those for Hopper where GPU, type and shape allow, else the general ones, where the build has them for
///              the GPU (docs/kernels.md)
///   general    those for any GPU from compute capability 8.0 on
/// The backend `fused` takes them whatever this says; `off` then means `automatic`.
enum class CudaKernels { off, automatic, general };

/// The choice for the whole process; `automatic` at first, or what DBA_CUDA_KERNELS (off, auto, general) says.
CudaKernels cuda_kernels();
void set_cuda_kernels(CudaKernels kernels);

/// "off", "auto", "general".
CudaKernels parse_cuda_kernels(const std::string& name);
std::string to_string(CudaKernels kernels);

/// Sets the backend for the length of a scope.
class BackendGuard {
 public:
  explicit BackendGuard(Backend chosen) : previous_(backend()) {
    set_backend(chosen);
  }
  ~BackendGuard() {
    set_backend(previous_);
  }
  BackendGuard(const BackendGuard&) = delete;
  BackendGuard& operator=(const BackendGuard&) = delete;

 private:
  Backend previous_;
};

}  // namespace dba

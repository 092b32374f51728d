#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/hopper_launch.h"

/// Kernels in a row: from compute capability 9.0 on, one may begin before the one ahead of it has ended.
namespace dba::ops::cuda {

/// Until what the kernels ahead in the stream wrote can be read, and what they read may be written.
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// For kernels that call wait_for_kernel_before.
template <class... Parameters, class... Arguments>
cudaError_t launch_in_row(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared_bytes,
                          cudaStream_t stream, const Arguments&... arguments) {
  int device = 0, major = 0;
  if (const auto status = cudaGetDevice(&device); status != cudaSuccess) {
    return status;
  }
  if (const auto status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
      status != cudaSuccess) {
    return status;
  }
  if (major >= 9) {
    return hopper::launch_overlapped(kernel, grid, threads, shared_bytes, stream, arguments...);
  }
  kernel<<<grid, threads, shared_bytes, stream>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace dba::ops::cuda

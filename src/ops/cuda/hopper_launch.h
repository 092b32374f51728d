#pragma once

#include <cuda_runtime.h>

#include <utility>

namespace dba::ops::cuda::hopper {

/// Launches a kernel that may begin before the one ahead of it in the stream has ended; it calls
/// wait_for_kernel_before (hopper.cuh) before it touches what that one writes or still reads.
template <class... Parameters, class... Arguments>
cudaError_t launch_overlapped(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared_bytes,
                              cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace dba::ops::cuda::hopper

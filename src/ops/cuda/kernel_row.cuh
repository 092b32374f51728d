#pragma once

#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <utility>

/// Kernels in a row: from compute capability 9.0 on, one may begin before the one ahead of it has ended.
namespace dba::ops::cuda {

/// Until what the kernels ahead in the stream wrote can be read, and what they read may be written.
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel's thread blocks take the places that this one's leave; they wait for its end themselves.
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Stands before a kernel's first access to memory that other kernels write.
__device__ inline void take_turn() {
  wait_for_kernel_before();
  let_next_kernel_start();
}

/// Launches a kernel that may begin before the one ahead of it in the stream has ended; it calls
/// wait_for_kernel_before before it touches what that one writes or still reads.
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

/// Whether a kernel's code on the current GPU waits for the kernel before it. Code for compute capability 8.x does not,
/// also where a newer GPU runs it, translated from PTX.
inline cudaError_t waits_for_kernel_before(const void* kernel, bool& waits) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, bool> known;
  int device = 0;
  if (const auto status = cudaGetDevice(&device); status != cudaSuccess) {
    return status;
  }
  const std::lock_guard lock(mutex);
  const std::pair key(device, kernel);
  auto found = known.find(key);
  if (found == known.end()) {
    cudaFuncAttributes attributes;
    if (const auto status = cudaFuncGetAttributes(&attributes, kernel); status != cudaSuccess) {
      return status;
    }
    found = known.emplace(key, attributes.ptxVersion >= 90 && attributes.binaryVersion >= 90).first;
  }
  waits = found->second;
  return cudaSuccess;
}

/// The same where the kernel's code can do it.
template <class... Parameters, class... Arguments>
cudaError_t launch_in_row(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared_bytes,
                          cudaStream_t stream, const Arguments&... arguments) {
  bool waits = false;
  if (const auto status = waits_for_kernel_before(reinterpret_cast<const void*>(kernel), waits);
      status != cudaSuccess) {
    return status;
  }
  if (waits) {
    return launch_overlapped(kernel, grid, threads, shared_bytes, stream, arguments...);
  }
  kernel<<<grid, threads, shared_bytes, stream>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace dba::ops::cuda

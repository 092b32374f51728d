#include "ops/cuda/general_convert.h"

#include "ops/cuda/general_launch.cuh"

namespace dba::ops::cuda::general {
namespace {

constexpr int kConvertThreads = 256;
constexpr int kConvertEntries = 8;  // of a thread

template <class Math>
__global__ void __launch_bounds__(kConvertThreads)
    round_kernel(typename Math::Element* to, const float* from, int64_t count) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kConvertThreads * kConvertEntries + threadIdx.x;
#pragma unroll
  for (int j = 0; j < kConvertEntries; ++j) {
    const int64_t i = begin + static_cast<int64_t>(j) * kConvertThreads;
    if (i < count) {
      to[i] = Math::round(from[i]);
    }
  }
}

}  // namespace

bool kernels_exist() {
  cudaFuncAttributes attributes;
  const auto status = cudaFuncGetAttributes(&attributes, round_kernel<Float16>);
  if (status != cudaSuccess) {
    cudaGetLastError();  // so that nobody else meets it
  }
  // Other errors say nothing of the build: a launch will meet them.
  return status != cudaErrorNoKernelImageForDevice && status != cudaErrorInvalidDeviceFunction;
}

cudaError_t round_to_elements(void* to, const float* from, int64_t count, Element element, cudaStream_t stream) {
  constexpr int64_t kOfBlock = kConvertThreads * kConvertEntries;
  const int64_t blocks = (count + kOfBlock - 1) / kOfBlock;
  if (element == Element::float16) {
    return launch_kernel(round_kernel<Float16>, blocks, kConvertThreads, 0, stream, static_cast<__half*>(to), from,
                         count);
  }
  return launch_kernel(round_kernel<Bfloat16>, blocks, kConvertThreads, 0, stream, static_cast<__nv_bfloat16*>(to),
                       from, count);
}

}  // namespace dba::ops::cuda::general

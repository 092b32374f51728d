#include "ops/cuda/real_spectrum.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

namespace dba::ops::cuda {
namespace {

constexpr int kLanes = 32;
constexpr int kTokens = 8;  // of a block, a warp each
constexpr int64_t kMostBlocks = int64_t{1} << 30;

/// A warp for a token: each number is read once and written where it stands and where it counts again.
template <class T>
__global__ void __launch_bounds__(kLanes* kTokens) real_spectrum_kernel(T* y, HalfSpectrum half) {
  const int64_t columns = half.width / 2 + 1, tokens = half.batch * half.n;
  const int64_t together = static_cast<int64_t>(gridDim.x) * kTokens;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kTokens + threadIdx.y; i < tokens; i += together) {
    const int64_t b = i / half.n, t = i - b * half.n;
    const auto* const from = static_cast<const float2*>(half.data) + b * half.of_batch + t * half.of_token;
    T* const own = y + i * half.width;
    T* const opposite = y + (b * half.n + (t == 0 ? 0 : half.n - t)) * half.width;
    for (int64_t j = threadIdx.x; j < columns; j += kLanes) {
      const T real = static_cast<T>(from[j * half.of_column].x);
      own[j] = real;
      if (j > 0 && half.width - j >= columns) {
        opposite[half.width - j] = real;
      }
    }
  }
}

template <class T>
cudaError_t launch(void* y, const HalfSpectrum& half, cudaStream_t stream) {
  const int64_t blocks = (half.batch * half.n + kTokens - 1) / kTokens;
  real_spectrum_kernel<<<static_cast<unsigned>(std::min(blocks, kMostBlocks)), dim3(kLanes, kTokens), 0, stream>>>(
      static_cast<T*>(y), half);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_real_spectrum(void* y, const HalfSpectrum& half, Element element, cudaStream_t stream) {
  if (half.batch == 0 || half.n == 0) {
    return cudaSuccess;
  }
  switch (element) {
    case Element::float16:
      return launch<__half>(y, half, stream);
    case Element::bfloat16:
      return launch<__nv_bfloat16>(y, half, stream);
    case Element::float32:
      return launch<float>(y, half, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace dba::ops::cuda

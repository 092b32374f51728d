#include "ops/cuda/sums_beyond.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace dba::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTogether = 8;  // rows whose loads are under way at once
constexpr int64_t kMostBlocks = 65535;

/// A thread for a column: down the rows for what lies before, up again for what lies behind.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sums_beyond_kernel(T* sums, const T* x, int64_t batch, int64_t rows, int64_t width, int64_t before, int64_t after) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= width) {
    return;
  }
  for (int64_t c = blockIdx.y; c < batch; c += gridDim.y) {
    const T* const from = x + c * rows * width + column;
    T* const into = sums + c * rows * width + column;
    T next[kTogether], own[kTogether];
    float running = 0.0f;
    for (int64_t first = 0; first < rows; first += kTogether) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int64_t row = first + i;
        next[i] = row >= before && row < rows ? from[(row - before) * width] : T(0.0f);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        running += static_cast<float>(next[i]);
        if (first + i < rows) {
          into[(first + i) * width] = static_cast<T>(running);
        }
      }
    }
    running = 0.0f;
    for (int64_t last = rows - after - 1; last >= 0; last -= kTogether) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const bool exists = last - i >= 0;
        next[i] = exists ? from[(last - i + after) * width] : T(0.0f);
        own[i] = exists ? into[(last - i) * width] : T(0.0f);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        running += static_cast<float>(next[i]);
        if (last - i >= 0) {
          into[(last - i) * width] = static_cast<T>(static_cast<float>(own[i]) + running);
        }
      }
    }
  }
}

template <class T>
cudaError_t launch(void* sums, const void* x, int64_t batch, int64_t rows, int64_t width, int64_t before, int64_t after,
                   cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((width + kThreads - 1) / kThreads),
                  static_cast<unsigned>(batch < kMostBlocks ? batch : kMostBlocks));
  sums_beyond_kernel<<<grid, kThreads, 0, stream>>>(static_cast<T*>(sums), static_cast<const T*>(x), batch, rows, width,
                                                    before, after);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_sums_beyond(void* sums, const void* x, Element element, int64_t batch, int64_t rows, int64_t width,
                               int64_t before, int64_t after, cudaStream_t stream) {
  if (batch == 0 || rows == 0 || width == 0) {
    return cudaSuccess;
  }
  switch (element) {
    case Element::float16:
      return launch<__half>(sums, x, batch, rows, width, before, after, stream);
    case Element::bfloat16:
      return launch<__nv_bfloat16>(sums, x, batch, rows, width, before, after, stream);
    case Element::float32:
      return launch<float>(sums, x, batch, rows, width, before, after, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace dba::ops::cuda

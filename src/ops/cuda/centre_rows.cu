#include "ops/cuda/centre_rows.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/kernel_row.cuh"

namespace dba::ops::cuda {
namespace {

constexpr int kThreads = 256;

/// A thread block for a group, a thread for a column.
template <class T>
__global__ void __launch_bounds__(kThreads) centre_rows_kernel(T* out, const float* rows, int count, int width) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * count * width;
  take_turn();
  for (int column = static_cast<int>(threadIdx.x); column < width; column += kThreads) {
    const float* const from = rows + first + column;
    T* const to = out + first + column;
    float sum = 0.0f;
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      sum += from[i * width];
    }
    const float mean = sum / static_cast<float>(count);
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      to[i * width] = static_cast<T>(from[i * width] - mean);
    }
  }
}

template <class T>
cudaError_t launch(void* out, const float* rows, int64_t groups, int count, int width, cudaStream_t stream) {
  return launch_in_row(centre_rows_kernel<T>, dim3(static_cast<unsigned>(groups)), kThreads, 0, stream,
                       static_cast<T*>(out), rows, count, width);
}

}  // namespace

cudaError_t centre_rows(void* out, Element element, const float* rows, int64_t groups, int count, int width,
                        cudaStream_t stream) {
  if (groups == 0 || count == 0 || width == 0) {
    return cudaSuccess;
  }
  switch (element) {
    case Element::float16:
      return launch<__half>(out, rows, groups, count, width, stream);
    case Element::bfloat16:
      return launch<__nv_bfloat16>(out, rows, groups, count, width, stream);
    case Element::float32:
      return launch<float>(out, rows, groups, count, width, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace dba::ops::cuda

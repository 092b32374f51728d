#include "ops/cuda/fold_rows.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "ops/cuda/kernel_row.cuh"
#include "ops/cuda/widened.cuh"

namespace dba::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kAtOnce = 16;  // loads of a weight under way

template <class T>
__device__ inline T rounded(float value) {
  return static_cast<T>(value);
}

/// A thread has a column. Block (x: group, head and kSlots slots of it, or a row of the tail; y: sequence).
template <class T, int kSlots>
__global__ void __launch_bounds__(kThreads) fold_rows_kernel(const __grid_constant__ FoldRowsArguments a) {
  extern __shared__ float z[];  // (width, kSlots)
  const int slot_blocks = (a.d_p + kSlots - 1) / kSlots;
  const int folded_blocks = a.groups * a.heads * slot_blocks;
  const int folded_rows = a.groups * a.heads * a.d_p;
  const int64_t all_rows = folded_rows + a.tail_rows;
  const int64_t first_row = blockIdx.y * all_rows;
  auto* rows = static_cast<T*>(a.rows);
  auto* bias = static_cast<T*>(a.bias);
  const int block = static_cast<int>(blockIdx.x);
  take_turn();
  if (block >= folded_blocks) {
    const int tail = block - folded_blocks;
    const int64_t row = first_row + folded_rows + tail;
    for (int column = static_cast<int>(threadIdx.x); column < a.d; column += kThreads) {
      rows[row * a.d + column] = static_cast<const T*>(a.tail)[static_cast<int64_t>(tail) * a.d + column];
    }
    if (bias != nullptr && threadIdx.x == 0) {
      bias[row] = a.tail_bias == nullptr ? rounded<T>(0.0f) : static_cast<const T*>(a.tail_bias)[tail];
    }
    return;
  }
  const int first_slot = block % slot_blocks * kSlots;
  const int head = block / slot_blocks % a.heads;
  const int group = block / slot_blocks / a.heads;
  const int slots = min(kSlots, a.d_p - first_slot);
  const auto* from = static_cast<const T*>(a.z) +
                     (static_cast<int64_t>(blockIdx.y) * a.d_p + first_slot) * a.heads * a.width + head * a.width;
  for (int i = static_cast<int>(threadIdx.x); i < kSlots * a.width; i += kThreads) {
    const int slot = i / a.width;
    const int k = i % a.width;
    z[k * kSlots + slot] =
        slot < slots ? widened(from[static_cast<int64_t>(slot) * a.heads * a.width + k]) * a.scale : 0.0f;
  }
  __syncthreads();
  const auto* weight = static_cast<const T*>(a.weights[group]) + static_cast<int64_t>(head) * a.width * a.d;
  const int64_t row = first_row + (group * a.heads + head) * a.d_p + first_slot;
  for (int column = static_cast<int>(threadIdx.x); column < a.d; column += kThreads) {
    float sums[kSlots] = {};
    for (int first = 0; first < a.width; first += kAtOnce) {
      float value[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        value[i] = first + i < a.width ? widened(weight[static_cast<int64_t>(first + i) * a.d + column]) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < a.width) {
#pragma unroll
          for (int slot = 0; slot < kSlots; ++slot) {
            sums[slot] = fmaf(z[(first + i) * kSlots + slot], value[i], sums[slot]);
          }
        }
      }
    }
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if (slot < slots) {
        rows[(row + slot) * a.d + column] = rounded<T>(sums[slot]);
      }
    }
  }
  if (bias != nullptr && static_cast<int>(threadIdx.x) < slots) {
    const auto* of_group = static_cast<const T*>(a.biases[group]);
    float sum = 0.0f;
    for (int k = 0; of_group != nullptr && k < a.width; ++k) {
      sum = fmaf(z[k * kSlots + threadIdx.x], widened(of_group[head * a.width + k]), sum);
    }
    bias[row + threadIdx.x] = rounded<T>(sum);
  }
}

template <class T, int kSlots>
cudaError_t launch(const FoldRowsArguments& a, cudaStream_t stream) {
  const int slot_blocks = (a.d_p + kSlots - 1) / kSlots;
  const dim3 grid(a.groups * a.heads * slot_blocks + a.tail_rows, a.batch);
  return launch_in_row(fold_rows_kernel<T, kSlots>, grid, kThreads, kSlots * a.width * sizeof(float), stream, a);
}

template <class T>
cudaError_t launch(const FoldRowsArguments& a, cudaStream_t stream) {
  // One set of slots: a block a row, so that the GPU is busy; many: sixteen rows a block, so that weights are read
  // less, where their slots fit in shared memory.
  constexpr int kWidestOfMany = 512;
  return a.batch == 1 || a.width > kWidestOfMany ? launch<T, 1>(a, stream) : launch<T, 16>(a, stream);
}

}  // namespace

cudaError_t fold_rows(const FoldRowsArguments& a, cudaStream_t stream) {
  switch (a.element) {
    case Element::float16:
      return launch<__half>(a, stream);
    case Element::bfloat16:
      return launch<__nv_bfloat16>(a, stream);
    case Element::float32:
      return launch<float>(a, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace dba::ops::cuda

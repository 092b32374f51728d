#include <cuda_runtime.h>

#include "ops/cuda/hopper_merge.cuh"
#include "ops/cuda/kernel_row.cuh"

namespace dba::ops::cuda::hopper {
namespace {

constexpr int kWarps = 8;
constexpr int kFullGrid = 1024;

__device__ inline void add(float4& sum, const float4& value) {
  sum.x += value.x;
  sum.y += value.y;
  sum.z += value.z;
  sum.w += value.w;
}

/// A thread block (x: sequence, y: share of its rows), a row at a time, its parts dealt out to eight warps.
__global__ void __launch_bounds__(32 * kWarps) merge_sums_kernel(const MergeSums m) {
  __shared__ float4 partial[kWarps][64];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  take_turn();
  const int sequence = static_cast<int>(blockIdx.x);
  const int begin = static_cast<int>(m.bounds.begin[sequence]);
  const int end = static_cast<int>(m.bounds.end[sequence]);
  for (int slot = static_cast<int>(blockIdx.y); slot < m.slots; slot += static_cast<int>(gridDim.y)) {
    const int block = slot / kBlockSlots;
    const int length = m.division.range_rows(block);
    const int pieces = m.two_each && m.division.is_single(block) ? 2 : 1;
    const int first_range = begin / length;
    int last_range = end > begin ? (end - 1) / length : first_range;
    while (last_range > first_range && cut(last_range * length, begin) >= end) {
      --last_range;
    }
    if (end > begin && last_range == first_range) {
      continue;
    }
    const int count = end > begin ? pieces * (last_range - first_range + 1) : 0;
    float4 sums[2] = {};
    for (int part = warp; part < count; part += kWarps) {
      const int range = first_range + part / pieces;
      const int place =
          m.division.first_place(block) + 2 * (pieces * range + part % pieces) + (range == first_range ? 1 : 0);
      const float* source = m.parts + (static_cast<int64_t>(place) * kBlockSlots + slot % kBlockSlots) * m.width;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (4 * lane + 128 * i < m.width) {
          add(sums[i], *reinterpret_cast<const float4*>(source + 4 * lane + 128 * i));
        }
      }
    }
    __syncthreads();
    partial[warp][lane] = sums[0];
    partial[warp][lane + 32] = sums[1];
    __syncthreads();
    const int column = static_cast<int>(threadIdx.x) * 4;
    if (threadIdx.x < 64 && column < m.width) {
      float4 sum = partial[0][threadIdx.x];
      for (int other = 1; other < kWarps; ++other) {
        add(sum, partial[other][threadIdx.x]);
      }
      *reinterpret_cast<float4*>(m.out + (static_cast<int64_t>(sequence) * m.slots + slot) * m.width + column) = sum;
    }
  }
}

/// 32 numbers to a thread block (y: which of the sums), ranges dealt out to eight warps.
__global__ void __launch_bounds__(32 * kWarps) range_sums_kernel(const __grid_constant__ RangeSums sums) {
  __shared__ float partial[kWarps][32];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const RangeSums::One& own = sums.sum[blockIdx.y];
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  if (index - lane >= own.size) {
    return;
  }
  take_turn();
  float sum = 0.0f;
  if (index < own.size) {
#pragma unroll 4
    for (int range = warp; range < own.ranges; range += kWarps) {
      sum += own.parts.of(range)[own.offset + index];
    }
  }
  partial[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && index < own.size) {
    for (int other = 1; other < kWarps; ++other) {
      sum += partial[other][lane];
    }
    own.out[index] = sum;
  }
}

}  // namespace

cudaError_t launch_merge_sums(const MergeSums& m, cudaStream_t stream) {
  if (m.bounds.count == 0 || m.slots == 0) {
    return cudaSuccess;
  }
  const int enough = kFullGrid / m.bounds.count + 1;
  const dim3 grid(m.bounds.count, m.slots < enough ? m.slots : enough);
  return launch_overlapped(merge_sums_kernel, grid, 32 * kWarps, 0, stream, m);
}

cudaError_t launch_range_sums(const RangeSums& sums, cudaStream_t stream) {
  int64_t largest = 0;
  for (int i = 0; i < sums.count; ++i) {
    largest = sums.sum[i].size > largest ? sums.sum[i].size : largest;
  }
  if (largest == 0) {
    return cudaSuccess;
  }
  const dim3 grid(static_cast<unsigned>((largest + 31) / 32), static_cast<unsigned>(sums.count));
  return launch_overlapped(range_sums_kernel, grid, 32 * kWarps, 0, stream, sums);
}

}  // namespace dba::ops::cuda::hopper

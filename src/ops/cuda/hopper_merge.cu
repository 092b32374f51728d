#include "ops/cuda/hopper_merge.cuh"

#include <cuda_runtime.h>

#include "ops/cuda/hopper_places.cuh"
#include "ops/cuda/kernel_row.cuh"

namespace dba::ops::cuda::hopper {
namespace {

constexpr int kWarps = 8;
/// Thread blocks that fill any GPU several times: most of them find their sequence in one range and end.
constexpr int kFullGrid = 4096;

/// A thread block (x: sequence, y: share of its rows). kWarpsPerRow warps share a row's parts: many parts, few rows; or
/// a warp has a row for itself. The sums of kAhead parts are on their way at a time, for as many registers.
template <int kWarpsPerRow, int kAhead>
__global__ void __launch_bounds__(32 * kWarps) merge_kernel(const MergeSummaries m) {
  constexpr int kRowsPerBlock = kWarps / kWarpsPerRow;
  __shared__ float partial[kWarps][256];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int member = warp % kWarpsPerRow;
  const int width = m.rows.width;
  take_turn();
  const int sequence = static_cast<int>(blockIdx.x);
  const int begin = static_cast<int>(m.bounds.begin[sequence]);
  const int end = static_cast<int>(m.bounds.end[sequence]);
  const bool empty = end <= begin;
  const auto in_one_range = [&](int length) { return length == 0 || begin / length == (end - 1) / length; };
  if (!empty && in_one_range(m.division.pair_rows) && in_one_range(m.division.single_rows)) {
    return;
  }
  const int step = kRowsPerBlock * static_cast<int>(gridDim.y);
  for (int first = kRowsPerBlock * static_cast<int>(blockIdx.y); first < m.rows.rows; first += step) {
    const int slot = min(first + warp / kWarpsPerRow, m.rows.rows - 1);
    const bool exists = first + warp / kWarpsPerRow < m.rows.rows;
    const int64_t row = static_cast<int64_t>(sequence) * m.rows.rows + slot;
    const Places places = exists ? places_of(m.division, 1, slot / kBlockSlots, begin, end) : Places{};
    const bool linear = slot >= m.rows.softmax;
    const auto row_of = [&](int part) { return static_cast<int64_t>(places[part]) * kBlockSlots + slot % kBlockSlots; };

    float reference = 0.0f;
    float total = 0.0f;
    float kept = 0.0f;
    if (places.count > 0) {
      reference = -INFINITY;
      for (int part = lane; part < places.count; part += 32) {
        reference = fmaxf(reference, m.parts.reference[row_of(part)]);
      }
      for (int mask = 16; mask > 0; mask /= 2) {
        reference = fmaxf(reference, __shfl_xor_sync(~0u, reference, mask));
      }
      for (int part = lane; part < places.count; part += 32) {
        const float share = exp2_fast((m.parts.reference[row_of(part)] - reference) * kLog2E);
        total += share * m.parts.total[row_of(part)];
        kept += share * m.parts.kept[row_of(part)];
      }
      for (int mask = 16; mask > 0; mask /= 2) {
        total += __shfl_xor_sync(~0u, total, mask);
        kept += __shfl_xor_sync(~0u, kept, mask);
      }
    }
    const float divisor = linear || places.count == 0 ? 1.0f : total;

    float4 sums[2] = {};
#pragma unroll 1
    for (int first_part = member; first_part < places.count; first_part += kAhead * kWarpsPerRow) {
      float share[kAhead];
      float4 value[kAhead][2] = {};
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int part = first_part + i * kWarpsPerRow;
        if (part < places.count) {
          share[i] = m.parts.reference[row_of(part)];
          const float* source = m.parts.sums + row_of(part) * width;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int column = 4 * lane + 128 * half;
            if (column < width) {
              value[i][half] = *reinterpret_cast<const float4*>(source + column);
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first_part + i * kWarpsPerRow < places.count) {
          share[i] = exp2_fast((share[i] - reference) * kLog2E);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            sums[half].x += share[i] * value[i][half].x;
            sums[half].y += share[i] * value[i][half].y;
            sums[half].z += share[i] * value[i][half].z;
            sums[half].w += share[i] * value[i][half].w;
          }
        }
      }
    }
    if constexpr (kWarpsPerRow > 1) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        *reinterpret_cast<float4*>(&partial[warp][4 * lane + 128 * i]) = sums[i];
      }
      __syncthreads();
      if (member == 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          for (int other = 1; other < kWarpsPerRow; ++other) {
            const float4 value = *reinterpret_cast<const float4*>(&partial[warp + other][4 * lane + 128 * i]);
            sums[i].x += value.x;
            sums[i].y += value.y;
            sums[i].z += value.z;
            sums[i].w += value.w;
          }
        }
      }
    }
    if (!exists || member != 0 || (places.count == 0 && !empty)) {
      continue;
    }
    const float multiplier = m.keep_scale / divisor;
    for (int i = 0; i < 2; ++i) {
      const int column = 4 * lane + 128 * i;
      if (column < width) {
        *reinterpret_cast<float4*>(m.c + row * width + column) =
            make_float4(sums[i].x * multiplier, sums[i].y * multiplier, sums[i].z * multiplier, sums[i].w * multiplier);
      }
    }
    if (lane == 0) {
      m.r[row] = kept / divisor * m.keep_scale;
      m.lse[row] = empty    ? -INFINITY
                   : linear ? logf(static_cast<float>(end - begin))
                            : reference + log2f(total) * kLn2 + m.rows.bias(sequence, slot);
    }
  }
}

}  // namespace

cudaError_t launch_merge(const MergeSummaries& m, cudaStream_t stream) {
  if (m.bounds.count == 0 || m.rows.rows == 0) {
    return cudaSuccess;
  }
  const int ranges =
      m.division.pair_ranges > m.division.single_ranges ? m.division.pair_ranges : m.division.single_ranges;
  const bool many_parts = ranges >= 4 * m.bounds.count;
  const int row_blocks = many_parts ? m.rows.rows : (m.rows.rows + kWarps - 1) / kWarps;
  const int enough = kFullGrid / m.bounds.count + 1;
  const dim3 grid(m.bounds.count, row_blocks < enough ? row_blocks : enough);
  if (ranges >= 4 * kWarps * m.bounds.count) {
    return launch_overlapped(merge_kernel<kWarps, 4>, grid, 32 * kWarps, 0, stream, m);
  }
  return many_parts ? launch_overlapped(merge_kernel<kWarps, 1>, grid, 32 * kWarps, 0, stream, m)
                    : launch_overlapped(merge_kernel<1, 1>, grid, 32 * kWarps, 0, stream, m);
}

}  // namespace dba::ops::cuda::hopper

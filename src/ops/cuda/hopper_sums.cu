#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "ops/cuda/hopper_merge.cuh"
#include "ops/cuda/hopper_places.cuh"
#include "ops/cuda/kernel_row.cuh"

namespace dba::ops::cuda::hopper {
namespace {

constexpr int kWarps = 8;
/// Thread blocks that fill any GPU several times: most of them find their sequence in one range and end.
constexpr int kFullGrid = 2048;
/// Parts that a thread has on their way at a time.
constexpr int kAhead = 8;
/// Numbers to a thread block of range_sums: 128 bytes of each range.
constexpr int kBlockNumbers = 32;

__device__ inline void add(float4& sum, const float4& value) {
  sum.x += value.x;
  sum.y += value.y;
  sum.z += value.z;
  sum.w += value.w;
}

struct Shared {
  float4 arrived[kAhead][32 * kWarps];
  float4 partial[kWarps][32];
};

/// Four numbers each: Σ of what at(part) points to over part = first, first + step, … below count, in order. kAhead are
/// on their way at a time, to a place of the thread's own in shared memory: loads to registers wait for each other,
/// wherever the compiler puts the additions between them.
template <class At>
__device__ inline float4 sum_parts(Shared& shared, int first, int step, int count, At at) {
  auto& arrived = shared.arrived;
  float4 sum{};
#pragma unroll 1
  for (; first < count; first += kAhead * step) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int part = first + i * step;
      const int bytes = part < count ? 16 : 0;  // zeros fill the place
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(&arrived[i][threadIdx.x])),
                   "l"(at(min(part, count - 1))), "r"(bytes)
                   : "memory");
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      add(sum, arrived[i][threadIdx.x]);
    }
  }
  return sum;
}

/// How the merging is divided: thread blocks for a sequence, a share of its rows and 128 of their columns. `sharers`
/// warps, 1 to 8, share a row's parts: many where there are many parts and few rows.
struct MergeGrid {
  int sharers = 1;
  int row_blocks = 0;
  int column_blocks = 0;
  int64_t blocks = 0;
};

/// What thread block `number` of the merging does.
__device__ inline void merge_sums(Shared& shared, const MergeSums& m, const MergeGrid& grid, int number) {
  auto& partial = shared.partial;
  const int sharers = grid.sharers;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int sequence = number % m.bounds.count;
  const int row_block = number / m.bounds.count % grid.row_blocks;
  const int column = 128 * (number / m.bounds.count / grid.row_blocks) + 4 * lane;
  const int member = warp % sharers;
  const int rows_at_once = kWarps / sharers;
  const int step = rows_at_once * grid.row_blocks;
  take_turn();
  const int begin = static_cast<int>(m.bounds.begin[sequence]);
  const int end = static_cast<int>(m.bounds.end[sequence]);
  for (int first = rows_at_once * row_block; first < m.slots; first += step) {
    const int slot = first + warp / sharers;
    const bool exists = slot < m.slots && column < m.width;
    const int block = slot / kBlockSlots;
    const int pieces = m.two_each && m.division.is_single(block) ? 2 : 1;
    const Places places = exists ? places_of(m.division, pieces, block, begin, end) : Places{};
    const float* parts = m.parts + slot % kBlockSlots * m.width + column;
    float4 sum = sum_parts(shared, member, sharers, places.count, [&](int part) {
      return parts + static_cast<int64_t>(places[part]) * kBlockSlots * m.width;
    });
    if (sharers > 1) {
      __syncthreads();
      partial[warp][lane] = sum;
      __syncthreads();
      for (int other = 1; member == 0 && other < sharers; ++other) {
        add(sum, partial[warp + other][lane]);
      }
    }
    const bool empty = end <= begin;
    if (exists && member == 0 && (places.count > 0 || empty)) {
      *reinterpret_cast<float4*>(m.out + (static_cast<int64_t>(sequence) * m.slots + slot) * m.width + column) = sum;
    }
  }
}

__host__ __device__ inline int blocks_for(const RangeSums::One& sum) {
  return static_cast<int>((sum.size + kBlockNumbers - 1) / kBlockNumbers);
}

__device__ inline void store(const SumOut& out, int64_t at, float value) {
  switch (out.type) {
    case Element::float16:
      static_cast<__half*>(out.data)[at] = __float2half_rn(value);
      break;
    case Element::bfloat16:
      static_cast<__nv_bfloat16*>(out.data)[at] = __float2bfloat16_rn(value);
      break;
    case Element::float32:
      out.floats()[at] = value;
      break;
  }
}

/// What thread block `block` of the sums over ranges does: 32 numbers of one of them, four to a thread; ranges dealt
/// out to 32 teams of eight threads.
__device__ inline void range_sums(Shared& shared, const RangeSums& sums, int block) {
  constexpr int kTeam = kBlockNumbers / 4;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  int which = 0;
  while (block >= blocks_for(sums.sum[which])) {
    block -= blocks_for(sums.sum[which++]);
  }
  const RangeSums::One& own = sums.sum[which];
  const int64_t first_number = static_cast<int64_t>(block) * kBlockNumbers;
  const int64_t number = first_number + thread % kTeam * 4;
  const int ranges = number < own.size ? own.ranges : 0;
  const float* parts = own.parts.parts + own.offset + number;
  const float* rest = own.parts.rest + own.offset + number;
  const int split = own.parts.split;
  const int64_t stride = own.parts.stride;
  take_turn();
  float4 sum = sum_parts(shared, thread / kTeam, 32 * kWarps / kTeam, ranges, [&](int range) {
    const bool behind = range >= split;  // RangeParts::of without a branch
    return (behind ? rest : parts) + (behind ? range - split : range) * stride;
  });
#pragma unroll
  for (int mask = kTeam; mask < 32; mask *= 2) {
    add(sum, make_float4(__shfl_xor_sync(~0u, sum.x, mask), __shfl_xor_sync(~0u, sum.y, mask),
                         __shfl_xor_sync(~0u, sum.z, mask), __shfl_xor_sync(~0u, sum.w, mask)));
  }
  if (lane < kTeam) {
    shared.partial[warp][lane] = sum;
  }
  __syncthreads();
  if (warp == 0 && first_number + lane < own.size) {
    const auto of_warp = [&](int other) { return reinterpret_cast<const float*>(shared.partial[other])[lane]; };
    float all = of_warp(0);
#pragma unroll
    for (int other = 1; other < kWarps; ++other) {
      all += of_warp(other);
    }
    store(own.out, first_number + lane, all);
  }
}

__global__ void __launch_bounds__(32 * kWarps)
    sums_kernel(const __grid_constant__ MergeSums merge, const MergeGrid grid, const __grid_constant__ RangeSums sums) {
  __shared__ Shared shared;
  const int64_t number = blockIdx.x;
  if (number < grid.blocks) {
    merge_sums(shared, merge, grid, static_cast<int>(number));
  } else {
    range_sums(shared, sums, static_cast<int>(number - grid.blocks));
  }
}

MergeGrid grid_of(const MergeSums& m) {
  MergeGrid grid;
  if (m.bounds.count == 0 || m.slots == 0) {
    return grid;
  }
  const auto& division = m.division;
  const int ranges = division.pair_ranges > division.single_ranges ? division.pair_ranges : division.single_ranges;
  while (grid.sharers < kWarps && ranges > kAhead * grid.sharers * m.bounds.count) {
    grid.sharers *= 2;
  }
  const int row_blocks = (m.slots * grid.sharers + kWarps - 1) / kWarps;
  const int enough = kFullGrid / m.bounds.count + 1;
  grid.row_blocks = row_blocks < enough ? row_blocks : enough;
  grid.column_blocks = (m.width + 127) / 128;
  grid.blocks = int64_t{m.bounds.count} * grid.row_blocks * grid.column_blocks;
  return grid;
}

}  // namespace

cudaError_t launch_sums(const MergeSums& merge, const RangeSums& sums, cudaStream_t stream) {
  const MergeGrid grid = grid_of(merge);
  int64_t blocks = grid.blocks;
  for (int i = 0; i < sums.count; ++i) {
    if (sums.sum[i].parts.stride % 4 != 0 || sums.sum[i].offset % 4 != 0) {
      return cudaErrorInvalidValue;  // four numbers are read at once
    }
    blocks += blocks_for(sums.sum[i]);
  }
  if (blocks == 0) {
    return cudaSuccess;
  }
  return launch_overlapped(sums_kernel, static_cast<unsigned>(blocks), 32 * kWarps, 0, stream, merge, grid, sums);
}

}  // namespace dba::ops::cuda::hopper

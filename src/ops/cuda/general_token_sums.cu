#include "ops/cuda/general_token_sums.h"

#include "ops/cuda/general_merge.h"
#include "ops/cuda/general_pipeline.cuh"

namespace dba::ops::cuda::general {
namespace {

template <class Math, int kWidth>
struct TokenSumsMemory {
  using E = typename Math::Element;
  static constexpr int kWeightStride = row_stride<E>(kTileRows);
  static constexpr int kValueStride = row_stride<E>(kWidth);

  alignas(16) E weights[kTileRows * kWeightStride];  // (tokens, slots)
  E values[kTileRows * kValueStride];                // (tokens, columns)
};

/// A block: a range of rows, 64 slots, one chunk of the values' columns.
template <class Math, int kWidth>
__global__ void __launch_bounds__(kThreads, kResidentBlocks) token_sums_kernel(TokenSums given, TokenSumsPlan plan) {
  using E = typename Math::Element;
  using Memory = TokenSumsMemory<Math, kWidth>;
  constexpr int kColumnsPerThread = (kWidth + kThreads - 1) / kThreads;
  extern __shared__ __align__(16) char shared[];
  auto* memory = reinterpret_cast<Memory*>(shared);

  const int block = static_cast<int>(blockIdx.x) % plan.blocks, slot0 = block * kTileRows;
  const int own = static_cast<int>(blockIdx.x) / plan.blocks % plan.chunks;
  const int64_t range = static_cast<int64_t>(blockIdx.x) / plan.blocks / plan.chunks;
  const int64_t lo = range * plan.split.range_rows, hi = min(plan.split.rows, lo + plan.split.range_rows);
  const int slots = given.weights.width, width = given.values.width;
  const int own_slots = min(kTileRows, slots - slot0), own_width = min(kWidth, width - own * kWidth);
  const auto* weights = static_cast<const E*>(given.weights.data) + slot0;
  const auto* values = static_cast<const E*>(given.values.data) + own * kWidth;
  const bool sum_weights = given.weight_sums != nullptr && own == 0;
  const bool sum_values = given.value_sums != nullptr && block == 0;
  const auto thread = static_cast<int>(threadIdx.x);

  BlockAccumulators<Math, kWidth> acc;
  float weight_sum = 0.0f, value_sum[kColumnsPerThread] = {};
  // `item`: the sequence, place or range whose sums these are.
  const auto write = [&](float* sums, float* weight_sums, int64_t item) {
    float* to = sums + item * slots * width + own * kWidth;
    acc.write_rows([&](int r) { return r < own_slots ? to + static_cast<int64_t>(slot0 + r) * width : nullptr; },
                   own_width, width % 2 == 0);
    if (sum_weights && thread < own_slots) {
      weight_sums[item * slots + slot0 + thread] = weight_sum;
    }
  };

  clear(acc.values);
  for_each_segment(given.bounds, lo, hi, [&](const Segment& segment) {
    if (given.each) {
      clear(acc.values);
      weight_sum = 0.0f;
    }
    const auto load = [&](int stage, int64_t first, int) {
      const int after = static_cast<int>(min(segment.after - first, int64_t{kTileRows}));
      const StridedRows<E> of_weights{
          .row = weights + first * given.weights.stride, .stride = given.weights.stride, .after = after};
      const StridedRows<E> of_values{
          .row = values + first * given.values.stride, .stride = given.values.stride, .after = after};
      load_tile<Math, kTileRows, kTileRows, kThreads>(memory[stage].weights, of_weights, own_slots,
                                                      plan.weights_aligned);
      load_tile<Math, kTileRows, kWidth, kThreads>(memory[stage].values, of_values, own_width, plan.values_aligned);
    };
    const auto use = [&](int stage, int64_t first, int) {
      __syncthreads();
      const int valid = static_cast<int>(min(segment.after - first, static_cast<int64_t>(kTileRows)));
      acc.template add_product<Contiguous::outer>(memory[stage].weights, Memory::kWeightStride, memory[stage].values,
                                                  own_width, padded(valid));
      // A tile's sum by itself: sums of sums round less than long ones.
      if (sum_weights && thread < own_slots) {
        float of_tile = 0.0f;
        for (int token = 0; token < valid; ++token) {
          of_tile += Math::widen(memory[stage].weights[token * Memory::kWeightStride + thread]);
        }
        weight_sum += of_tile;
      }
      if (sum_values) {
#pragma unroll
        for (int j = 0; j < kColumnsPerThread; ++j) {
          if (thread + j * kThreads < own_width) {
            float of_tile = 0.0f;
            for (int token = 0; token < valid; ++token) {
              of_tile += Math::widen(memory[stage].values[token * Memory::kValueStride + thread + j * kThreads]);
            }
            value_sum[j] += of_tile;
          }
        }
      }
    };
    pipeline(plan.stages, segment.first, segment.after, kTileRows, 1, load, use);
    if (given.each) {
      const int64_t place = place_of(segment, range);
      if (place < 0) {
        write(given.sums, given.weight_sums, segment.sequence);
      } else {
        write(plan.sums, plan.weight_sums, place);
      }
    }
  });

  const bool alone = plan.split.ranges == 1;
  if (!given.each) {
    write(alone ? given.sums : plan.sums, alone ? given.weight_sums : plan.weight_sums, range);
  }
  if (sum_values) {
    float* to = (alone ? given.value_sums : plan.value_sums + range * width) + own * kWidth;
#pragma unroll
    for (int j = 0; j < kColumnsPerThread; ++j) {
      if (thread + j * kThreads < own_width) {
        to[thread + j * kThreads] = value_sum[j];
      }
    }
  }
}

}  // namespace

TokenSumsPlan plan_token_sums(const TokenSums& given, Scratch& scratch) {
  const size_t size = element_bytes(given.element);
  const int64_t slots = given.weights.width, width = given.values.width;
  TokenSumsPlan plan;
  plan.blocks = (given.weights.width + kTileRows - 1) / kTileRows;
  plan.chunks = chunks_of(given.values.width, tile_width(given.element, given.values.width));
  plan.split = split_rows(given.values.rows, static_cast<int64_t>(plan.blocks) * plan.chunks);
  plan.weights_aligned = aligned_rows(given.weights.data, given.weights.stride, size);
  plan.values_aligned = aligned_rows(given.values.data, given.values.stride, size);
  const int64_t ranges = plan.split.ranges > 1 ? plan.split.ranges : 0;
  const int64_t items = given.each ? plan.split.places() : ranges;
  plan.sums = scratch.take<float>(items * slots * width);
  plan.weight_sums = scratch.take<float>(items * slots);
  plan.value_sums = scratch.take<float>(ranges * width);
  return plan;
}

cudaError_t add_tokens(const TokenSums& given, TokenSumsPlan plan, cudaStream_t stream) {
  const int slots = given.weights.width, width = given.values.width;
  auto status = with_arithmetic(given.element, given.tf32, width, [&](auto math, auto tile) {
    using Math = decltype(math);
    constexpr int kWidth = decltype(tile)::value;
    constexpr int kBytes = sizeof(TokenSumsMemory<Math, kWidth>);
    plan.stages = stages_for(kBytes, 2 * kBytes);
    return launch_kernel(token_sums_kernel<Math, kWidth>,
                         static_cast<int64_t>(plan.split.ranges) * plan.blocks * plan.chunks, kThreads,
                         plan.stages * kBytes, stream, given, plan);
  });
  const int ranges = plan.split.ranges;
  const auto merge = [&](float* sums, const float* partials, int64_t count) {
    if (status != cudaSuccess || sums == nullptr) {
      return;
    }
    if (given.each) {
      status = merge_sequence_sums(given.bounds, plan.split, {sums, partials, count, count}, stream);
    } else if (ranges > 1) {
      status = add_ranges(sums, partials, ranges, count, stream);
    }
  };
  merge(given.sums, plan.sums, static_cast<int64_t>(slots) * width);
  merge(given.weight_sums, plan.weight_sums, slots);
  if (status == cudaSuccess && given.value_sums != nullptr && ranges > 1) {
    status = add_ranges(given.value_sums, plan.value_sums, ranges, width, stream);
  }
  return status;
}

}  // namespace dba::ops::cuda::general

#include "ops/cuda/general_merge.h"
#include "ops/cuda/general_pipeline.cuh"
#include "ops/cuda/general_slot_terms.cuh"

namespace dba::ops::cuda::general {
namespace {

constexpr int kTokens = 32;  // in a step: more would leave no room for a second block beside A, dC and X

/// Shared memory: tiles of A and dC, one each for good where the width is one chunk, else a stage each; tiles of X, a
/// stage each; the gradient of the scores (64 slots, 32 tokens); its sums over the tokens of the second side.
template <class Math, int kWidth>
struct RowGradientMemory {
  using E = typename Math::Element;
  static constexpr int kRows = kTileRows * row_stride<E>(kWidth);
  static constexpr int kX = kTokens * row_stride<E>(kWidth);
  static constexpr int kGradientStride = row_stride<E>(kTokens);
  static constexpr int kSideSums = (BlockWarps<E, kWidth>::kSides - 1) * kTileRows;
  using Keep = KeepBits<kTokens, kTileRows>;

  E* tiles;
  E* dscores;
  float* side_sums;
  Keep* keep;
  int stages, chunks;

  __device__ RowGradientMemory(char* memory, int stages, int chunks) : stages(stages), chunks(chunks) {
    tiles = reinterpret_cast<E*>(memory);
    dscores = tiles + (chunks > 1 ? stages : 1) * 2 * kRows + stages * kX;
    side_sums = reinterpret_cast<float*>(dscores + kTileRows * kGradientStride);
    keep = reinterpret_cast<Keep*>(side_sums + kSideSums);
  }
  __device__ E* rows(int stage) const {
    return tiles + (chunks > 1 ? stage : 0) * 2 * kRows;
  }
  __device__ E* dc(int stage) const {
    return rows(stage) + kRows;
  }
  __device__ E* x(int stage) const {
    return tiles + (chunks > 1 ? stages : 1) * 2 * kRows + stage * kX;
  }
  static constexpr int bytes(int stages, int chunks) {
    return static_cast<int>(((chunks > 1 ? stages : 1) * 2 * kRows + stages * kX + kTileRows * kGradientStride) *
                                sizeof(E) +
                            kSideSums * sizeof(float) + sizeof(Keep));
  }
};

/// A block: a range of rows, 64 slots, one chunk of dA's columns. Scores are summed over all chunks, the block's own
/// last, whose X then serves dA += dS X. Rows of each sequence are written sequence by sequence, shared ones at the
/// end of the range.
template <class Math, int kWidth>
__global__ void __launch_bounds__(BlockWarps<typename Math::Element, kWidth>::kThreads,
                                  BlockWarps<typename Math::Element, kWidth>::kResident)
    row_gradient_kernel(CompressBackwardArguments given, CompressBackwardPlan plan, int stages) {
  using E = typename Math::Element;
  using Warps = BlockWarps<E, kWidth>;
  using Memory = RowGradientMemory<Math, kWidth>;
  extern __shared__ __align__(16) char shared[];
  const Memory memory(shared, stages, plan.chunks);
  constexpr int kStride = row_stride<E>(kWidth);
  const CompressArguments& forward = given.forward;
  const ScoreOperand& rows = forward.rows;

  const int blocks = plan.each_blocks + plan.shared_blocks;
  const int block = static_cast<int>(blockIdx.x) % blocks;
  const int own = static_cast<int>(blockIdx.x) / blocks % plan.chunks;
  const int64_t range = static_cast<int64_t>(blockIdx.x) / blocks / plan.chunks;
  const int64_t lo = range * plan.split.range_rows, hi = min(plan.split.rows, lo + plan.split.range_rows);
  const int width = forward.x.width, slots = row_count(rows);
  const int own_width = min(kWidth, width - own * kWidth);
  const bool of_each = block < plan.each_blocks;
  const int slot0 = of_each ? block * kTileRows : rows.each_rows + (block - plan.each_blocks) * kTileRows;
  const int count = min(kTileRows, (of_each ? rows.each_rows : slots) - slot0);
  const bool sum_scores = given.dscore_sums != nullptr && own == 0 && slot0 + count > slots - rows.linear;
  if ((of_each ? given.deach : given.dshared.floats()) == nullptr && !sum_scores) {
    return;
  }
  const auto* x = static_cast<const E*>(forward.x.data);
  const int t = lane_index() & 3;
  // This thread's first row of the scores, and its warp's tokens of a step.
  const int row0 = first_score_row() + (lane_index() >> 2);
  constexpr int kWarpTokens = kTokens / Warps::kSides;
  const int token0 = kWarpTokens * score_side();

  BlockAccumulators<Math, kWidth> acc;
  clear(acc.values);
  for_each_segment(forward.bounds, lo, hi, [&](const Segment& segment) {
    const float inverse_length = 1.0f / static_cast<float>(segment.end - segment.begin);
    SlotTerms terms[2];
    float score_sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + 8 * half;
      terms[half] = SlotTerms::of(given, plan.reduction, segment.sequence, row < count ? slot0 + row : slots);
    }
    // The chunk of the width at a position: the block's own is the last.
    const auto chunk_at = [&](int position) { return (own + 1 + position) % plan.chunks; };
    const auto load = [&](int stage, int64_t first, int position) {
      const int chunk = chunk_at(position), chunk_width = min(kWidth, width - chunk * kWidth);
      if (plan.chunks > 1 || first == segment.first) {
        load_tile<Math, kTileRows, kWidth, Warps::kThreads>(
            memory.rows(stage), score_rows<E>(rows, width, segment.sequence, slot0, count, chunk * kWidth), chunk_width,
            plan.rows_aligned);
        const StridedRows<E> dc{
            .row = static_cast<const E*>(plan.dc) + (segment.sequence * slots + slot0) * width + chunk * kWidth,
            .stride = width,
            .after = count};
        load_tile<Math, kTileRows, kWidth, Warps::kThreads>(memory.dc(stage), dc, chunk_width, plan.dc_aligned);
      }
      const StridedRows<E> tokens{.row = x + first * forward.x.stride + chunk * kWidth,
                                  .stride = forward.x.stride,
                                  .after = static_cast<int>(min(segment.after - first, int64_t{kTokens}))};
      load_tile<Math, kTokens, kWidth, Warps::kThreads>(memory.x(stage), tokens, chunk_width, plan.x_aligned);
    };

    if (of_each) {
      clear(acc.values);
    }
    // The products with A and, whose tile lies behind that of A, with dC: both share the tokens' fragments.
    float products[2][kWarpTokens / 8][4];
    const auto use = [&](int stage, int64_t first, int position) {
      const bool chunk_is_last = position == plan.chunks - 1;
      if (chunk_is_last && plan.dropping.rng != nullptr) {
        memory.keep->draw(plan.dropping, kCompressSite, segment.sequence, first - segment.begin,
                          [&](int r) { return r < count ? slot0 + r : -1; });
      }
      __syncthreads();
      if (position == 0) {
        clear(products);
      }
      const int depth = padded(min(kWidth, width - chunk_at(position) * kWidth));
      Math::template product<2, kWarpTokens / 16, Contiguous::depth, Contiguous::depth>(
          products, memory.rows(stage) + first_score_row() * kStride, kStride, memory.x(stage) + token0 * kStride,
          kStride, 16, kWarpTokens / 16, depth, /*row_step=*/kTileRows);
      if (chunk_is_last) {
        const int valid = static_cast<int>(min(segment.after - first, static_cast<int64_t>(kTokens)));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = row0 + 8 * half;
          float of_tile = 0.0f;
#pragma unroll
          for (int n = 0; n < kWarpTokens / 8; ++n) {
            float dscore[2] = {0.0f, 0.0f};
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int token = token0 + 8 * n + 2 * t + e;
              if (token < valid) {
                float mask = 1.0f;
                if (plan.dropping.rng != nullptr) {
                  mask = memory.keep->kept(row, token) ? plan.dropping.scale : 0.0f;
                }
                dscore[e] = terms[half]
                                .template at<Math>(products[0][n][2 * half + e], products[1][n][2 * half + e], mask,
                                                   inverse_length)
                                .dscore;
                of_tile += dscore[e];
              }
            }
            store_pair(memory.dscores + row * Memory::kGradientStride + token0 + 8 * n + 2 * t, dscore[0], dscore[1]);
          }
          score_sum[half] += of_tile;
        }
        __syncthreads();
        acc.template add_product<Contiguous::depth>(memory.dscores, Memory::kGradientStride, memory.x(stage), own_width,
                                                    padded(valid));
      }
    };
    pipeline(stages, segment.first, segment.after, kTokens, plan.chunks, load, use);

    const int64_t place = place_of(segment, range);
    if (of_each && given.deach != nullptr) {
      float* to = (place < 0 ? given.deach + segment.sequence * rows.each_rows * width
                             : plan.each + place * rows.each_rows * width) +
                  own * kWidth;
      acc.write_rows([&](int r) { return r < count ? to + static_cast<int64_t>(slot0 + r) * width : nullptr; },
                     own_width, width % 2 == 0);
    }
    if (sum_scores) {
      float* to = place < 0 ? given.dscore_sums + segment.sequence * slots : plan.score_sums + place * slots;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        score_sum[half] = sum_of_quad(score_sum[half]);
        if (score_side() > 0 && t == 0) {
          memory.side_sums[row0 + 8 * half] = score_sum[half];
        }
      }
      if constexpr (Warps::kSides > 1) {
        __syncthreads();
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (score_side() == 0 && t == 0 && terms[half].linear) {
          to[slot0 + row0 + 8 * half] =
              score_sum[half] + (Warps::kSides > 1 ? memory.side_sums[row0 + 8 * half] : 0.0f);
        }
      }
    }
  });
  if (!of_each && given.dshared.floats() != nullptr) {
    float* to = (plan.split.ranges == 1 ? given.dshared.floats() : plan.shared + range * rows.shared_rows * width) +
                own * kWidth;
    acc.write_rows(
        [&](int r) { return r < count ? to + static_cast<int64_t>(slot0 - rows.each_rows + r) * width : nullptr; },
        own_width, width % 2 == 0);
  }
}

}  // namespace

cudaError_t write_row_gradient(const CompressBackwardArguments& given, const CompressBackwardPlan& plan,
                               cudaStream_t stream) {
  const CompressArguments& forward = given.forward;
  const int64_t width = forward.x.width;
  auto status = with_doubled_tile(forward.element, forward.tf32, forward.x.width, [&](auto math, auto tile) {
    using Math = decltype(math);
    constexpr int kWidth = decltype(tile)::value;
    using Memory = RowGradientMemory<Math, kWidth>;
    static_assert(BlockWarps<typename Math::Element, kWidth>::kSides == 1 || Memory::bytes(2, 1) <= kRoomForEightWarps);
    const int stages = stages_for(Memory::bytes(1, plan.chunks), Memory::bytes(2, plan.chunks));
    return launch_kernel(
        row_gradient_kernel<Math, kWidth>,
        static_cast<int64_t>(plan.split.ranges) * (plan.each_blocks + plan.shared_blocks) * plan.chunks,
        BlockWarps<typename Math::Element, kWidth>::kThreads, Memory::bytes(stages, plan.chunks), stream, given, plan,
        stages);
  });
  if (status == cudaSuccess && given.deach != nullptr && forward.rows.each_rows > 0) {
    const int64_t count = forward.rows.each_rows * width;
    status = merge_sequence_sums(forward.bounds, plan.split, {given.deach, plan.each, count, count}, stream);
  }
  if (status == cudaSuccess && given.dshared.floats() != nullptr && plan.split.ranges > 1) {
    status =
        add_ranges(given.dshared.floats(), plan.shared, plan.split.ranges, forward.rows.shared_rows * width, stream);
  }
  if (status == cudaSuccess && given.dscore_sums != nullptr && forward.rows.linear > 0) {
    const int64_t slots = row_count(forward.rows), first = slots - forward.rows.linear;
    const float* partials = plan.score_sums == nullptr ? nullptr : plan.score_sums + first;
    status = merge_sequence_sums(forward.bounds, plan.split,
                                 {given.dscore_sums + first, partials, forward.rows.linear, slots}, stream);
  }
  return status;
}

}  // namespace dba::ops::cuda::general

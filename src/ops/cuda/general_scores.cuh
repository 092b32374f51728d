#pragma once

#include "ops/cuda/general_heads.cuh"
#include "ops/cuda/general_launch.cuh"
#include "ops/cuda/general_rows.cuh"

/// Scores of 64 tokens and 64 columns of slots, both operands streamed along the width in tiles of 128 bytes a row.
namespace dba::ops::cuda::general {

/// kSides: four warps have 64 columns, the next four the 64 columns behind them.
template <class Math, int kSides = 1>
struct ScoreStream {
  using E = typename Math::Element;
  static constexpr int kThreads = general::kThreads * kSides;
  static constexpr int kColumns = kBlockColumns * kSides;
  static constexpr int kStages = sizeof(E) == 2 ? 3 : 2;
  static constexpr int kDepth = 128 / static_cast<int>(sizeof(E));
  static constexpr int kStride = row_stride<E>(kDepth);
  static constexpr int kTokenTile = kTileRows * kStride;
  static constexpr int kStage = kTokenTile + kColumns * kStride;
  static constexpr int kElements = kStages * kStage;

  E* tiles;  // kElements

  /// slot_of(r) gives the row behind a column of the scores, or null.
  template <class SlotOf>
  __device__ void load(int step, int width, StridedRows<E> tokens, bool tokens_aligned, const SlotOf& slot_of,
                       bool slots_aligned) const {
    const int from = step * kDepth;
    if (from < width) {
      E* stage = tiles + step % kStages * kStage;
      const int count = min(kDepth, width - from);
      tokens.row += from;
      load_tile<Math, kTileRows, kDepth, kThreads>(stage, tokens, count, tokens_aligned);
      const auto slot_from = [&](int r) {
        const E* row = slot_of(r);
        return row == nullptr ? row : row + from;
      };
      load_tile<Math, kColumns, kDepth, kThreads>(stage + kTokenTile, ScatteredRows(slot_from), count, slots_aligned);
    }
    commit_copies();
  }

  /// The first loads; the tiles must be free.
  template <class SlotOf>
  __device__ void begin(int width, const StridedRows<E>& tokens, bool tokens_aligned, const SlotOf& slot_of,
                        bool slots_aligned) const {
#pragma unroll 1
    for (int step = 0; step < kStages - 1; ++step) {
      load(step, width, tokens, tokens_aligned, slot_of, slots_aligned);
    }
  }

  /// scores (16 tokens of this warp × the 64 columns of its side) = tokens · slotsᵀ; after begin(). The last tiles may
  /// still be in use by other warps when it returns.
  template <class SlotOf>
  __device__ void sum(float (&scores)[1][8][4], int width, const StridedRows<E>& tokens, bool tokens_aligned,
                      const SlotOf& slot_of, bool slots_aligned) const {
    clear(scores);
#pragma unroll 1
    for (int step = 0; step * kDepth < width; ++step) {
      await_copies<kStages - 2>();
      __syncthreads();
      load(step + kStages - 1, width, tokens, tokens_aligned, slot_of, slots_aligned);
      const E* stage = tiles + step % kStages * kStage;
      Math::template product<1, 4, Contiguous::depth, Contiguous::depth>(
          scores, stage + first_score_row() * kStride, kStride,
          stage + kTokenTile + kBlockColumns * score_side() * kStride, kStride, 16, 4,
          padded(min(kDepth, width - step * kDepth)));
    }
  }
};

/// The columns of a block of scores on each side, units one behind the other: their slots and biases.
template <int kSides = 1>
struct ScoreColumns {
  int slot[kBlockColumns * kSides];
  float bias[kBlockColumns * kSides];

  /// Columns without a slot vanish: −∞ before a softmax, else 0. A barrier must follow.
  __device__ void fill(const HeadBlocks& heads, int unit, int block, const ScoreOperand& rows, int64_t sequence,
                       bool linear) {
    if (threadIdx.x < kBlockColumns * kSides) {
      const auto column = static_cast<int>(threadIdx.x);
      slot[column] = heads.slot(unit + column / kBlockColumns, block, column % kBlockColumns);
      bias[column] = slot[column] >= 0 ? score_bias(rows, sequence, slot[column]) : linear ? 0.0f : -INFINITY;
    }
  }
};

}  // namespace dba::ops::cuda::general

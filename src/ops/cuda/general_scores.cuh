#pragma once

#include "ops/cuda/general_heads.cuh"
#include "ops/cuda/general_launch.cuh"
#include "ops/cuda/general_rows.cuh"

/// Scores of 64 tokens and 64 columns of slots, both operands streamed along the width in tiles of 128 bytes a row.
namespace dba::ops::cuda::general {

template <class Math>
struct ScoreStream {
  using E = typename Math::Element;
  static constexpr int kStages = sizeof(E) == 2 ? 3 : 2;
  static constexpr int kDepth = 128 / static_cast<int>(sizeof(E));
  static constexpr int kStride = row_stride<E>(kDepth);
  static constexpr int kTile = kTileRows * kStride;
  static constexpr int kElements = kStages * 2 * kTile;

  E* tiles;  // kElements

  /// slot_of(r) gives the row behind a column of the scores, or null.
  template <class SlotOf>
  __device__ void load(int step, int width, StridedRows<E> tokens, bool tokens_aligned, const SlotOf& slot_of,
                       bool slots_aligned) const {
    const int from = step * kDepth;
    if (from < width) {
      E* stage = tiles + step % kStages * 2 * kTile;
      const int count = min(kDepth, width - from);
      tokens.row += from;
      load_tile<Math, kTileRows, kDepth>(stage, tokens, count, tokens_aligned);
      const auto slot_from = [&](int r) {
        const E* row = slot_of(r);
        return row == nullptr ? row : row + from;
      };
      load_tile<Math, kTileRows, kDepth>(stage + kTile, ScatteredRows(slot_from), count, slots_aligned);
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

  /// scores (16 tokens of this warp × 64 columns) = tokens · slotsᵀ; after begin(). The last tiles may still be in use
  /// by other warps when it returns.
  template <class SlotOf>
  __device__ void sum(float (&scores)[1][8][4], int width, const StridedRows<E>& tokens, bool tokens_aligned,
                      const SlotOf& slot_of, bool slots_aligned) const {
    clear(scores);
#pragma unroll 1
    for (int step = 0; step * kDepth < width; ++step) {
      await_copies<kStages - 2>();
      __syncthreads();
      load(step + kStages - 1, width, tokens, tokens_aligned, slot_of, slots_aligned);
      const E* stage = tiles + step % kStages * 2 * kTile;
      Math::template product<1, 4, Contiguous::depth, Contiguous::depth>(scores, stage + 16 * warp_index() * kStride,
                                                                         kStride, stage + kTile, kStride, 16, 4,
                                                                         padded(min(kDepth, width - step * kDepth)));
    }
  }
};

/// The columns of one block of scores: their slots and biases.
struct ScoreColumns {
  int slot[kBlockColumns];
  float bias[kBlockColumns];

  /// Columns without a slot vanish: −∞ before a softmax, else 0. A barrier must follow.
  __device__ void fill(const HeadBlocks& heads, int unit, int block, const ScoreOperand& rows, int64_t sequence,
                       bool linear) {
    if (threadIdx.x < kBlockColumns) {
      const auto column = static_cast<int>(threadIdx.x);
      slot[column] = heads.slot(unit, block, column);
      bias[column] = slot[column] >= 0 ? score_bias(rows, sequence, slot[column]) : linear ? 0.0f : -INFINITY;
    }
  }
};

}  // namespace dba::ops::cuda::general

#pragma once

#include "ops/cuda/hopper_compress_tiles.cuh"
#include "ops/cuda/lane_quad.cuh"

/// How compress's scores become weights while the tokens stream by.
namespace dba::ops::cuda::hopper::compressing {

/// Weights are kept relative to a score that follows the largest one only when that is ahead by more than this, a
/// factor of 2⁸: sums are then rescaled rarely, and nothing overflows.
constexpr float kSlack = 8.0f * kLn2;

/// Of a thread, which holds the scores of two slots against two of each eight tokens of a tile (wgmma.cuh); four lanes
/// have the same slots.
template <bool kDropout>
struct SlotWeights {
  int block;  // of 64 slots, the warp group's
  int slot;   // the first; the second is 8 further on
  MaskKey key{};
  float reference[2];  // the score that weights are relative to
  float sum[2];        // of the weights
  float kept[2];       // of the weights that dropout keeps

  /// Whether a slot, the first or the second, passes no softmax.
  __device__ bool linear(const CompressKernel& k, int i) const {
    return slot + 8 * i >= k.rows.softmax;
  }

  /// Before a part's first tile.
  __device__ void begin() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      reference[i] = -INFINITY;
      sum[i] = 0.0f;
      kept[i] = 0.0f;
    }
  }

  /// Scores to weights, in place; `factor`: by what the sums so far must be multiplied. Whether any must.
  __device__ bool weigh(float (&scores)[kTokens / 2], const CompressKernel& k, const TileNote& note,
                        float (&factor)[2]) {
    return note.tokens < kTokens ? weigh_tile<true>(scores, k, note, factor)
                                 : weigh_tile<false>(scores, k, note, factor);
  }

 private:
  /// kPartial: some tokens are missing.
  template <bool kPartial>
  __device__ bool weigh_tile(float (&scores)[kTokens / 2], const CompressKernel& k, const TileNote& note,
                             float (&factor)[2]) {
    if constexpr (kPartial) {
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (8 * j + 2 * (warp_lane() & 3) + e % 2 >= note.tokens) {
            scores[4 * j + e] = -INFINITY;
          }
        }
      }
    }
    bool moved = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = scores[2 * i];
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
        largest = fmaxf(largest, fmaxf(scores[4 * j + 2 * i], scores[4 * j + 2 * i + 1]));
      }
      largest = quad_max(largest);
      factor[i] = 1.0f;
      if (largest > reference[i] + kSlack) {
        factor[i] = linear(k, i) ? 1.0f : exp2_fast((reference[i] - largest) * kLog2E);
        reference[i] = largest;
        sum[i] *= factor[i];
        kept[i] *= factor[i];
        moved = true;
      }
    }
    if ((block + 1) * kBlockSlots > k.rows.softmax && k.rows.rows > k.rows.softmax) {
      to_weights<true>(scores, k, note);
    } else {
      to_weights<false>(scores, k, note);
    }
    return __any_sync(~0u, moved);
  }

  template <bool kAnyLinear>
  __device__ void to_weights(float (&scores)[kTokens / 2], const CompressKernel& k, const TileNote& note) {
    float scale[2], shift[2];
    if constexpr (kAnyLinear) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scale[i] = 1.0f / static_cast<float>(note.length);
        shift[i] = k.rows.bias(note.sequence, slot + 8 * i) * scale[i];
      }
    }
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = e / 2;
        const float score = scores[4 * j + e];
        // The difference first: of a score of 10,000 times log₂e only three decimals are known, and the weights of the
        // largest scores, which the products round to 1, would add up to something else.
        float weight = exp2_fast((score - reference[i]) * kLog2E);
        if constexpr (kAnyLinear) {
          weight = !linear(k, i) ? weight : score == -INFINITY ? 0.0f : fmaf(score, scale[i], shift[i]);
        }
        sum[i] += weight;
        scores[4 * j + e] = weight;
      }
      if constexpr (kDropout) {
        const uint32_t bits =
            kept_slots_by_tokens(key, static_cast<uint32_t>(note.sequence), static_cast<uint32_t>(slot),
                                 static_cast<uint32_t>(note.first_token + 8 * j));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          scores[4 * j + e] = (bits >> e) & 1 ? scores[4 * j + e] : 0.0f;
          kept[e / 2] += scores[4 * j + e];
        }
      }
    }
  }
};

}  // namespace dba::ops::cuda::hopper::compressing

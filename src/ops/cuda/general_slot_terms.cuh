#pragma once

#include "ops/cuda/general_compress_backward.h"
#include "ops/cuda/general_rows.cuh"

namespace dba::ops::cuda::general {

/// What compress's backward needs to know of one slot of one sequence, besides its rows of A and dC.
struct SlotTerms {
  float bias = 0.0f, lse = 0.0f, dr = 0.0f, reduction = 0.0f;
  bool present = false, linear = false;

  __device__ static SlotTerms of(const CompressBackwardArguments& given, const float* reduction, int64_t sequence,
                                 int slot) {
    const ScoreOperand& rows = given.forward.rows;
    const int slots = row_count(rows);
    SlotTerms terms;
    if (slot < slots) {
      const int64_t at = sequence * slots + slot;
      terms.bias = score_bias(rows, sequence, slot);
      terms.lse = given.summary.lse[at];
      terms.dr = given.dr == nullptr ? 0.0f : given.dr[at];
      terms.reduction = reduction[at];
      terms.present = true;
      terms.linear = slot >= slots - rows.linear;
    }
    return terms;
  }

  struct Gradients {
    float weight;  // after dropout
    float dscore;
  };
  /// `score` and `dweight`: the products with A and dC. `mask`: 0, or one over the keep rate.
  template <class Math>
  __device__ Gradients at(float score, float dweight, float mask, float inverse_length) const {
    if (!present) {
      return {0.0f, 0.0f};
    }
    score += bias;
    dweight = (dweight + dr) * mask;
    if (linear) {
      return {score * inverse_length * mask, dweight * inverse_length};
    }
    const float weight = Math::exponential(score - lse);
    return {weight * mask, weight * (dweight - reduction)};
  }
};

}  // namespace dba::ops::cuda::general

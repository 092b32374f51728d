#pragma once

#include "ops/cuda/half_types.cuh"

/// The softmax over the d_p slots of each head, on a 64-column block of scores in the layout of a product's
/// accumulators: rows are tokens, columns slots, d_p is a power of two up to 64.
namespace dba::ops::cuda {

/// Combines the entries of every group of kSlots columns in each of the thread's two rows and hands the result to
/// use(first entry of the group in the thread, row, value); combine is associative and commutative.
template <int kSlots, class Read, class Combine, class Use>
__device__ inline void for_each_group(Read read, Combine combine, Use use) {
  constexpr int kBlocks = kSlots >= 8 ? kSlots / 8 : 1;  // of 8 columns in a group
#pragma unroll
  for (int first = 0; first < 8; first += kBlocks) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const auto entry = [&](int j, int c) { return 4 * (first + j) + 2 * row + c; };
      if constexpr (kSlots == 1) {
        use(entry(0, 0), row, read(entry(0, 0)));
        use(entry(0, 1), row, read(entry(0, 1)));
      } else {
        float value = combine(read(entry(0, 0)), read(entry(0, 1)));
#pragma unroll
        for (int j = 1; j < kBlocks; ++j) {
          value = combine(value, combine(read(entry(j, 0)), read(entry(j, 1))));
        }
        if constexpr (kSlots >= 4) {
          value = combine(value, __shfl_xor_sync(~0u, value, 1));
        }
        if constexpr (kSlots >= 8) {
          value = combine(value, __shfl_xor_sync(~0u, value, 2));
        }
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          use(entry(j, 0), row, value);
          use(entry(j, 1), row, value);
        }
      }
    }
  }
}

/// scores → softmax over each group of kSlots, in place.
template <int kSlots>
__device__ inline void softmax_over_groups(float (&scores)[32]) {
  if constexpr (kSlots == 1) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      scores[i] = 1.0f;
    }
  } else {
    for_each_group<kSlots>(
        [&](int i) { return scores[i]; }, [](float a, float b) { return fmaxf(a, b); },
        [&](int i, int, float largest) { scores[i] = exp2_fast(fmaf(scores[i], kLog2E, -largest * kLog2E)); });
    for_each_group<kSlots>([&](int i) { return scores[i]; }, [](float a, float b) { return a + b; },
                           [&](int i, int, float sum) { scores[i] *= __fdividef(1.0f, sum); });
  }
}

/// Gradient of the softmax: gradient ← weights ∘ (gradient − Σ over the group of weights ∘ gradient).
template <int kSlots>
__device__ inline void softmax_gradient_over_groups(const float (&weights)[32], float (&gradient)[32]) {
  for_each_group<kSlots>([&](int i) { return weights[i] * gradient[i]; }, [](float a, float b) { return a + b; },
                         [&](int i, int, float sum) { gradient[i] = weights[i] * (gradient[i] - sum); });
}

/// Calls function(std::integral_constant<int, slots>) for the power of two that `slots` is.
template <class Function>
__device__ inline void with_slots(int slots, Function function) {
  switch (slots) {
    case 1:
      return function(std::integral_constant<int, 1>{});
    case 2:
      return function(std::integral_constant<int, 2>{});
    case 4:
      return function(std::integral_constant<int, 4>{});
    case 8:
      return function(std::integral_constant<int, 8>{});
    case 16:
      return function(std::integral_constant<int, 16>{});
    case 32:
      return function(std::integral_constant<int, 32>{});
    default:
      return function(std::integral_constant<int, 64>{});
  }
}

/// Scores of 64 slots → weights, in place: bias, and the softmax over each group of d_p slots unless `linear`.
/// lane_in_four() is the thread's number among the four that share two rows, asked for anew at every use
/// (`recomputed`).
template <class LaneInFour>
__device__ inline void weigh_slots(float (&scores)[32], const float2* bias, LaneInFour lane_in_four, int d_p,
                                   bool linear) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 pair = bias[4 * j + lane_in_four()];
    scores[4 * j] += pair.x;
    scores[4 * j + 1] += pair.y;
    scores[4 * j + 2] += pair.x;
    scores[4 * j + 3] += pair.y;
  }
  if (!linear) {
    with_slots(d_p, [&](auto slots) { softmax_over_groups<decltype(slots)::value>(scores); });
  }
}

}  // namespace dba::ops::cuda

#pragma once

#include "ops/cuda/general_arithmetic.cuh"
#include "ops/cuda/passes.h"

/// How restore's H heads of d_p slots lie in blocks of 64 columns of scores. A head takes 8, 16, 32 or 64 columns, the
/// next that holds d_p, so that its softmax is a reduction over whole fragments; a head of more than 64 slots takes
/// several blocks.
namespace dba::ops::cuda::general {

constexpr int kBlockColumns = 64;

struct HeadBlocks {
  int heads = 0, d_p = 0;
  int columns = 0;          // of a head in a block
  int blocks_per_head = 0;  // 1 unless d_p > 64
  int units = 0;            // blocks, or heads where a head takes several blocks

  HeadBlocks() = default;
  HeadBlocks(int slots, int heads) : heads(heads), d_p(slots / heads) {
    columns = 8;
    while (columns < d_p && columns < kBlockColumns) {
      columns *= 2;
    }
    blocks_per_head = (d_p + kBlockColumns - 1) / kBlockColumns;
    const int heads_per_block = kBlockColumns / columns;
    units = blocks_per_head > 1 ? heads : (heads + heads_per_block - 1) / heads_per_block;
  }

  /// A softmax over several blocks goes through them twice: once for its sums, then for the weights.
  __host__ __device__ int passes(bool linear) const {
    return blocks_per_head > 1 && !linear ? 2 : 1;
  }

  /// The slot in a column of block `block` of a unit, or −1.
  __device__ int slot(int unit, int block, int column) const {
    const int head = blocks_per_head > 1 ? unit : unit * (kBlockColumns / columns) + column / columns;
    const int within = blocks_per_head > 1 ? block * kBlockColumns + column : column % columns;
    return head < heads && within < d_p ? head * d_p + within : -1;
  }
};

/// values[n] is one row's share of the octet n of columns; afterwards every octet of a head holds the head's result.
/// `octets`: 1, 2, 4 or 8 to a head.
template <class Combine>
__device__ inline void reduce_heads(float (&values)[8], int octets, const Combine& combine) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    values[n] = combine(values[n], __shfl_xor_sync(0xffffffffu, values[n], 1));
    values[n] = combine(values[n], __shfl_xor_sync(0xffffffffu, values[n], 2));
  }
#pragma unroll
  for (int step = 1; step < 8; step *= 2) {
    if (step < octets) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        if ((n & step) == 0) {
          const float both = combine(values[n], values[n + step]);
          values[n] = both;
          values[n + step] = both;
        }
      }
    }
  }
}

__device__ inline void sum_heads(float (&values)[8], int octets) {
  reduce_heads(values, octets, [](float a, float b) { return a + b; });
}
__device__ inline void max_heads(float (&values)[8], int octets) {
  reduce_heads(values, octets, [](float a, float b) { return fmaxf(a, b); });
}

/// The softmax of one row of scores over each head, in the making: largest score, Σ exp(score − largest) and, for the
/// gradient, Σ exp(score − largest) · dweight. With several blocks to a head, blocks are added one by one.
template <class Math, bool kGradient>
struct HeadSoftmax {
  float largest[8], sum[8], gradient[8];

  /// One head's state, kept from block to block where a head takes several and so all octets agree.
  struct Carried {
    float largest = -INFINITY, sum = 0.0f, gradient = 0.0f;
  };
  __device__ explicit HeadSoftmax(const Carried& carried) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      largest[n] = carried.largest;
      sum[n] = carried.sum;
      gradient[n] = carried.gradient;
    }
  }
  __device__ Carried carried() const {
    return {largest[0], sum[0], gradient[0]};
  }
  __device__ float exponential(float score, int n) const {
    return Math::exponential(score - (largest[n] == -INFINITY ? 0.0f : largest[n]));
  }
  /// score(n, e) and dweight(n, e): this lane's two columns of octet n.
  template <class Score, class Gradient>
  __device__ void add(int octets, const Score& score, const Gradient& dweight) {
    float top[8], added[8], added_gradient[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      top[n] = fmaxf(score(n, 0), score(n, 1));
    }
    max_heads(top, octets);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float before = largest[n];
      largest[n] = fmaxf(before, top[n]);
      const float factor = exponential(before, n);
      sum[n] *= factor;
      if constexpr (kGradient) {
        gradient[n] *= factor;
      }
      const float first = exponential(score(n, 0), n), second = exponential(score(n, 1), n);
      added[n] = first + second;
      if constexpr (kGradient) {
        added_gradient[n] = first * dweight(n, 0) + second * dweight(n, 1);
      }
    }
    sum_heads(added, octets);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      sum[n] += added[n];
    }
    if constexpr (kGradient) {
      sum_heads(added_gradient, octets);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        gradient[n] += added_gradient[n];
      }
    }
  }
  /// Every score and gradient is added: sum becomes its inverse, gradient the mean of dweight under the softmax.
  __device__ void finish() {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      sum[n] = sum[n] == 0.0f ? 0.0f : 1.0f / sum[n];
      if constexpr (kGradient) {
        gradient[n] *= sum[n];
      }
    }
  }
};

}  // namespace dba::ops::cuda::general

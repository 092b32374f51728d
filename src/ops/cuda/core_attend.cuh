#pragma once

#include <cstdint>

#include "ops/cuda/core.h"
#include "ops/cuda/widened.cuh"
#include "ops/philox.h"

/// What the kernels of the attention between slots share.
namespace dba::ops::cuda {

constexpr float kLayerNormEps = 1e-5f;

__host__ __device__ constexpr int round_up(int size, int unit) {
  return (size + unit - 1) / unit * unit;
}

/// Number `index` of an array whose type is known at run time only: for what is read once.
__device__ inline float number_at(const void* from, Element element, int64_t index) {
  return element == Element::float32   ? static_cast<const float*>(from)[index]
         : element == Element::float16 ? widened(static_cast<const __half*>(from)[index])
                                       : widened(static_cast<const __nv_bfloat16*>(from)[index]);
}

/// a / b and its remainder for a ≥ 0, b > 0: the division of unsigned numbers is the shorter one.
struct Division {
  int quotient, remainder;
  __device__ Division(int a, int b)
      : quotient(static_cast<int>(static_cast<unsigned>(a) / static_cast<unsigned>(b))), remainder(a - quotient * b) {}
};

/// How many lanes share one row of P': a power of two.
__device__ inline int lanes_of_row(int d_p) {
  int lanes = 8;
  while (lanes < d_p && lanes < 32) {
    lanes *= 2;
  }
  return lanes;
}

/// Over `width` neighbouring lanes, a power of two.
__device__ inline float group_sum(float value, int width) {
#pragma unroll 1
  for (int offset = width / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(~0u, value, offset);
  }
  return value;
}

__device__ inline float group_max(float value, int width) {
#pragma unroll 1
  for (int offset = width / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, offset));
  }
  return value;
}

/// a · b as the sum of sums of 16 products, which rounds less than one long sum; `b_at(k)` is b's number k.
template <class At>
__device__ inline float sum_of_products(const float* a, const At& b_at, int count) {
  float sum = 0.0f;
#pragma unroll 1
  for (int first = 0; first < count; first += 16) {
    const int after = min(first + 16, count);
    float run = 0.0f;
#pragma unroll 4
    for (int k = first; k < after; ++k) {
      run = fmaf(a[k], b_at(k), run);
    }
    sum += run;
  }
  return sum;
}

/// The dropout of P' at query slot, key slot.
struct SlotMask {
  uint64_t seed = 0;
  uint64_t offset = 0;
  uint32_t threshold = 0;
  float scale = 1.0f;
  bool on = false;

  __device__ explicit SlotMask(const CoreDropout& dropout) {
    on = dropout.rng != nullptr;
    if (on) {
      seed = static_cast<uint64_t>(dropout.rng[0]);
      offset = static_cast<uint64_t>(dropout.rng[1]);
      threshold = dropout.threshold;
      scale = dropout.scale;
    }
  }
  /// Whether keys `key` (bit 0) and key + 1 (bit 1) are kept; key is even.
  __device__ uint32_t kept_pair(int sequence, int slot, int key) const {
    const auto words = philox::token_quad(seed, offset, dropout_site::kCore, static_cast<uint32_t>(sequence),
                                          static_cast<uint32_t>(slot), static_cast<uint32_t>(key >> 2));
    const bool second = (key & 2) != 0;
    return ((second ? words.word[2] : words.word[0]) >= threshold ? 1u : 0u) |
           ((second ? words.word[3] : words.word[1]) >= threshold ? 2u : 0u);
  }
  __device__ bool kept(int sequence, int slot, int key) const {
    return !on || (kept_pair(sequence, slot, key & ~1) >> (key & 1) & 1u) != 0;
  }
};

}  // namespace dba::ops::cuda

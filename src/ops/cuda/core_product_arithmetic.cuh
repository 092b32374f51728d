#pragma once

#include "ops/cuda/core_mma.cuh"
#include "ops/cuda/core_product_operands.cuh"

/// What eight warps do with a stage of two operands of a small product, each thread for 16 entries of the tile.
namespace dba::ops::cuda::product_tile {

/// Products on the tensor cores, in TF32. A warp has 32×16. The order of k is free as long as both operands agree: a
/// lane's two k are neighbours. With kExact a float is two TF32 numbers, its value and what rounding leaves of it, so
/// that products keep 21 bits; half numbers are TF32 numbers already.
template <bool kExact>
struct TensorCores {
  static constexpr int kSums = 16;

  /// The value's bits, and with kExact those of the remainder.
  template <class T>
  __device__ static void split(float value, uint32_t& bits, uint32_t& rest) {
    if constexpr (sizeof(T) == 2) {
      bits = __float_as_uint(value);
    } else {
      bits = tf32_bits(value);
      if constexpr (kExact) {
        rest = tf32_bits(value - __uint_as_float(bits));
      }
    }
  }

  template <class A, bool kAAcross, class B, bool kBAcross>
  __device__ static void stage(float (&sum)[kSums], const OperandTile<A, kAAcross>& a,
                               const OperandTile<B, kBAcross>& b) {
    const int lane = threadIdx.x & 31;
    const int row_of_warp = threadIdx.x / 32 % 2 * 32 + (lane >> 2);
    const int column_of_warp = threadIdx.x / 64 * 16 + (lane >> 2);
#pragma unroll 2
    for (int k = 2 * (lane & 3); k < kStep; k += 8) {
      uint32_t left[2][4], left_rest[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = a.pair(row_of_warp + 8 * i, k);
        split<A>(two.x, left[i / 2][i % 2], left_rest[i / 2][i % 2]);
        split<A>(two.y, left[i / 2][i % 2 + 2], left_rest[i / 2][i % 2 + 2]);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float2 two = b.pair(column_of_warp + 8 * n, k);
        uint32_t right[2], right_rest[2];
        split<B>(two.x, right[0], right_rest[0]);
        split<B>(two.y, right[1], right_rest[1]);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          auto& to = *reinterpret_cast<float(*)[4]>(&sum[(m * 2 + n) * 4]);
          if constexpr (kExact && sizeof(A) == 4) {
            mma_16x8x8(to, left_rest[m], right);
          }
          if constexpr (kExact && sizeof(B) == 4) {
            mma_16x8x8(to, left[m], right_rest);
          }
          mma_16x8x8(to, left[m], right);
        }
      }
    }
  }

  /// Where the entries of `sum` lie in the tile.
  __device__ static int row(int entry) {
    return threadIdx.x / 32 % 2 * 32 + entry / 8 * 16 + entry % 4 / 2 * 8 + (threadIdx.x & 31) / 4;
  }
  __device__ static int column(int entry) {
    return threadIdx.x / 64 * 16 + entry / 4 % 2 * 8 + entry % 2 + (threadIdx.x & 3) * 2;
  }
};

/// True float32. A thread has every sixteenth row and column.
struct FusedMultiplyAdd {
  static constexpr int kSums = 16;

  template <class A, bool kAAcross, class B, bool kBAcross>
  __device__ static void stage(float (&sum)[kSums], const OperandTile<A, kAAcross>& a,
                               const OperandTile<B, kBAcross>& b) {
#pragma unroll 2
    for (int k = 0; k < kStep; ++k) {
      float right[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        right[n] = b.at(column(n), k);
      }
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float left = a.at(row(4 * m), k);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          sum[4 * m + n] = fmaf(left, right[n], sum[4 * m + n]);
        }
      }
    }
  }
  __device__ static int row(int entry) {
    return entry / 4 * 16 + static_cast<int>(threadIdx.x) / 16;
  }
  __device__ static int column(int entry) {
    return entry % 4 * 16 + static_cast<int>(threadIdx.x) % 16;
  }
};

}  // namespace dba::ops::cuda::product_tile

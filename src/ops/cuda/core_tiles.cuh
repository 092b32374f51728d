#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/core_attend.cuh"
#include "ops/cuda/core_copy.cuh"
#include "ops/cuda/core_mma.cuh"
#include "ops/cuda/half_types.cuh"
#include "ops/cuda/lane_quad.cuh"

/// What a warp of the kernels that do `core` in one launch does: some columns of a projection, P', O, columns of M; for
/// 16 slots and heads of 64 columns.
///
/// Products are Σ_k A(i, k) B(j, k). Those with weights split the other operand into two half numbers, value and
/// remainder, and keep 16 bits of it (mma.m16n8k16); those between slots take TF32 operands (m16n8k8), whose rounding
/// of 2⁻¹² is far below that of the half types. Lane 4g + t of a warp gives A rows g and g + 8, B row g, and receives
/// columns 2t and 2t + 1. The order of k is free as long as both operands agree, and so is that of B's rows: they are
/// chosen so that weights load as 16 bytes ("pieces"), and that the result of one product lies in the registers where
/// the next one wants its operand.
namespace dba::ops::cuda::tiles {

constexpr int kSlots = 16;
constexpr int kHeadWidth = 64;
constexpr int kLiftedStride = kHeadWidth + 4;      // floats between slots of one head's rows
constexpr int kMixWarps = 4;                       // that make one head's M
constexpr int kMixColumns = 64;                    // of M that a warp makes
constexpr int kMostOut = kMixWarps * kMixColumns;  // d_out
constexpr int kOutPieces = kHeadWidth / 8;         // of a row of W_O, one head

/// Floats between summaries of d numbers: eight lanes that read 16 bytes of two rows meet different banks.
__host__ __device__ constexpr int summary_stride(int d) {
  return d + 4;
}

struct Lane {
  int g = static_cast<int>(threadIdx.x / 4 % 8);
  int t = static_cast<int>(threadIdx.x % 4);

  __device__ Lane() {}
  /// The piece of block `block` in a row whose number is as even or odd as g, in the order of piece_place.
  __device__ int piece(int block) const {
    return (4 * block + t) ^ (4 * (g & 1));
  }
  /// The B row of the first of two tiles whose columns a lane receives as four neighbours; the second's is two behind.
  __device__ int row_of_pair() const {
    return 4 * (g / 2) + g % 2;
  }
};

/// unpack, in one instruction a number.
__device__ inline float2 unpacked(uint32_t pair, __nv_bfloat16 /*type*/) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
}
__device__ inline float2 unpacked(uint32_t pair, __half /*type*/) {
  return unpack<__half>(pair);
}

/// A left operand of 16×16 in two half numbers. The first pair is of row g, the second of row g + 8, then both again
/// for the other eight k.
template <class T>
struct SplitTile {
  uint32_t value[4];
  uint32_t rest[4];

  __device__ SplitTile() {}
  __device__ SplitTile(const float2& first, const float2& second, const float2& third, const float2& fourth) {
    const float2 pair[4] = {first, second, third, fourth};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      value[i] = pack<T>(pair[i].x, pair[i].y);
      const float2 rounded = unpacked(value[i], T());
      rest[i] = pack<T>(pair[i].x - rounded.x, pair[i].y - rounded.y);
    }
  }
};

/// Half `half` (0, 1) of the k of `piece`, for all tiles: neighbouring instructions do not wait for each other. The
/// products of remainders go to `rest`, which may be `sum` itself.
template <class T, int kTiles>
__device__ inline void multiply(float (&sum)[kTiles][4], float (&rest)[kTiles][4], const SplitTile<T>& a,
                                const uint4 (&piece)[kTiles], int half) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    mma_16x8x16<T>(sum[tile], a.value, half == 0 ? piece[tile].x : piece[tile].z,
                   half == 0 ? piece[tile].y : piece[tile].w);
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    mma_16x8x16<T>(rest[tile], a.rest, half == 0 ? piece[tile].x : piece[tile].z,
                   half == 0 ? piece[tile].y : piece[tile].w);
  }
}

/// A tile of 16×8 as a product leaves it, k = 2t and 2t + 1, as the left operand of the next.
struct LeftTile {
  uint32_t bits[4];
  __device__ explicit LeftTile(const float (&a)[4])
      : bits{tf32_bits(a[0]), tf32_bits(a[2]), tf32_bits(a[1]), tf32_bits(a[3])} {}
};

__device__ inline void multiply(float (&sum)[4], const LeftTile& a, const uint32_t (&b)[2]) {
  mma_16x8x8(sum, a.bits, b);
}

/// Rows g and g + 8 at columns 2t and 2t + 1 of the eight from `from` on, which is already this lane's.
template <int kStride>
__device__ inline void load_tile(float (&to)[4], const float* from) {
  const float2 upper = *reinterpret_cast<const float2*>(from);
  const float2 lower = *reinterpret_cast<const float2*>(from + 8 * kStride);
  to[0] = upper.x, to[1] = upper.y, to[2] = lower.x, to[3] = lower.y;
}

/// Where piece `piece` of row `row` lies among pieces in shared memory, `pieces` (a multiple of eight) a row: eight
/// lanes with four pieces of two neighbouring rows meet different banks.
__device__ inline int piece_place(int row, int piece, int pieces) {
  return row * pieces + (piece ^ (4 * (row & 1)));
}

/// Copies `rows` rows of 8·pieces elements, `stride` elements apart, to where piece_place says; by `threads` threads.
template <class T>
__device__ inline void copy_pieces(uint4* to, const T* from, int rows, int pieces, int64_t stride, int thread,
                                   int threads) {
#pragma unroll 2
  for (int i = thread; i < rows * pieces; i += threads) {
    const int row = i / pieces;
    const int piece = i % pieces;
    copy_async<16>(to + piece_place(row, piece, pieces), from + row * stride + 8 * piece);
  }
}

/// Asks for rows of weights to come to the L2 cache while the kernels ahead still run: nothing is read from here. A row
/// is `width` elements, a multiple of 64; by `threads` threads.
template <class T>
__device__ inline void expect_rows(const T* from, int rows, int width, int64_t stride, int thread, int threads) {
  const int lines = width / 64;
#pragma unroll 1
  for (int i = thread; i < rows * lines; i += threads) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i / lines * stride + i % lines * 64));
  }
}

/// Where a column of V lies in a row: a lane of P' V then receives the columns that it holds of W_O.
__device__ inline int value_place(int column) {
  return (column & ~31) + 8 * (column / 2 % 4) + 2 * (column / 8 % 4) + column % 2;
}

/// rows (16×d) Wᵀ, kTiles tiles of eight columns; `rows` is already this lane's (row g, number 8t), piece(tile, block)
/// has the weights for 32 k. kUnrolled: how many of these follow each other as straight code; all where pieces are held
/// in registers. kApart: remainders have sums of their own, for more registers and a shorter chain of products.
template <class T, int kDepth, int kUnrolled, bool kApart, int kTiles, class Piece>
__device__ inline void lift(float (&sum)[kTiles][4], const float* rows, const Piece& piece) {
  constexpr int kStride = summary_stride(kDepth);
  float of_rest[kTiles][4] = {};
  float(&rest)[kTiles][4] = kApart ? of_rest : sum;
#pragma unroll kUnrolled
  for (int block = 0; block < kDepth / 32; ++block) {
    uint4 of_block[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      of_block[tile] = piece(tile, block);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 upper = *reinterpret_cast<const float4*>(rows + 32 * block + 4 * half);
      const float4 lower = *reinterpret_cast<const float4*>(rows + 8 * kStride + 32 * block + 4 * half);
      multiply(sum, rest,
               SplitTile<T>(make_float2(upper.x, upper.y), make_float2(lower.x, lower.y), make_float2(upper.z, upper.w),
                            make_float2(lower.z, lower.w)),
               of_block, half);
    }
  }
  if constexpr (kApart) {
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      sum[i / 4][i % 4] += rest[i / 4][i % 4];
    }
  }
}

/// p += q kᵀ over eight columns of q and k; tile j of p has keys 8j to 8j + 7.
__device__ inline void add_scores(float (&p)[2][4], const float (&q)[4], const float (&k)[4]) {
  const LeftTile queries(q);
#pragma unroll
  for (int keys = 0; keys < 2; ++keys) {
    multiply(p[keys], queries, {tf32_bits(k[2 * keys]), tf32_bits(k[2 * keys + 1])});
  }
}

/// Scores of `e` columns → P' of one head and sequence, in place.
__device__ inline void weigh_keys(float (&p)[2][4], int e, const SlotMask& mask, int sequence, int head) {
  const Lane lane;
  uint32_t kept = ~0u;
  if (mask.on) {
    kept = 0;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {  // bit 2i: row g + 8 (i / 2), key 8 (i % 2) + 2t
      kept |= mask.kept_pair(sequence, head * kSlots + lane.g + i / 2 * 8, i % 2 * 8 + 2 * lane.t) << (2 * i);
    }
  }
  const float scale = kLog2E * rsqrtf(static_cast<float>(e));
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float* const of_row[4] = {&p[0][2 * row], &p[0][2 * row + 1], &p[1][2 * row], &p[1][2 * row + 1]};
    const float largest = quad_max(fmaxf(fmaxf(*of_row[0], *of_row[1]), fmaxf(*of_row[2], *of_row[3])));
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *of_row[i] = exp2_fast((*of_row[i] - largest) * scale);
      sum += *of_row[i];
    }
    const float inverse = __fdividef(mask.scale, quad_sum(sum));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *of_row[i] = (kept >> (4 * row + i) & 1u) != 0 ? *of_row[i] * inverse : 0.0f;
    }
  }
}

/// The 16 columns of O = P' V that one step of the product with W_O takes: a lane's are 32 (step / 2) + 4 (step % 2) +
/// 8t and the three behind it, two in each tile.
__device__ inline void mix_values(float (&sum)[2][4], const LeftTile (&p)[2], const float* v, int step) {
  const Lane lane;
#pragma unroll
  for (int keys = 0; keys < 2; ++keys) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const float* const from = v + (8 * keys + 2 * lane.t) * kLiftedStride + 8 * (2 * step + tile) + lane.g;
      multiply(sum[tile], p[keys], {tf32_bits(from[0]), tf32_bits(from[kLiftedStride])});
    }
  }
}

template <class T>
__device__ inline SplitTile<T> split(const float (&sum)[2][4]) {
  return SplitTile<T>(make_float2(sum[0][0], sum[0][1]), make_float2(sum[0][2], sum[0][3]),
                      make_float2(sum[1][0], sum[1][1]), make_float2(sum[1][2], sum[1][3]));
}

/// Σ over the eight g of the lanes with this t.
__device__ inline float column_sum(float value) {
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) {
    value += __shfl_xor_sync(~0u, value, mask);
  }
  return value;
}

/// M_h = O_h W_O,hᵀ for the 64 columns from `column` on. `weights`: pieces of W_O,h in shared memory; row: number of
/// the head's first slot of the sequence among those of all.
template <class T>
__device__ inline void mix_out(const MixOut& out, int out_width, const SplitTile<T> (&mixed)[4], const uint4* weights,
                               int column, int64_t row) {
  const Lane lane;
  const int64_t at = (row + lane.g) * out_width + column + 4 * lane.t;
  float* const m = out.m == nullptr ? nullptr : out.m + at;
  T* const rounded = out.rounded == nullptr ? nullptr : static_cast<T*>(out.rounded) + at;
  T* const centred = out.centred == nullptr ? nullptr : static_cast<T*>(out.centred) + at;
  weights += (column + lane.row_of_pair()) * kOutPieces;
#pragma unroll 1
  for (int pair = 0; pair < kMixColumns / 16; pair += 2) {
    if (column + 16 * pair >= out_width) {
      break;
    }
    float sum[4][4] = {};
#pragma unroll
    for (int block = 0; block < kHeadWidth / 32; ++block) {
      uint4 piece[4];
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        piece[tile] = weights[(16 * (pair + tile / 2) + tile % 2 * 2) * kOutPieces + lane.piece(block)];
      }
      multiply(sum, sum, mixed[2 * block], piece, 0);
      multiply(sum, sum, mixed[2 * block + 1], piece, 1);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (column + 16 * (pair + i) < out_width) {
        float mean[4] = {};
        if (centred != nullptr) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float(&tile)[4] = sum[2 * i + j / 2];
            mean[j] = column_sum(tile[j % 2] + tile[j % 2 + 2]) / kSlots;
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float4 value = make_float4(sum[2 * i][2 * half], sum[2 * i][2 * half + 1], sum[2 * i + 1][2 * half],
                                           sum[2 * i + 1][2 * half + 1]);
          const int to = 8 * half * out_width + 16 * (pair + i);
          if (m != nullptr) {
            *reinterpret_cast<float4*>(m + to) = value;
          }
          if (rounded != nullptr) {
            *reinterpret_cast<uint2*>(rounded + to) = make_uint2(pack<T>(value.x, value.y), pack<T>(value.z, value.w));
          }
          if (centred != nullptr) {
            *reinterpret_cast<uint2*>(centred + to) = make_uint2(pack<T>(value.x - mean[0], value.y - mean[1]),
                                                                 pack<T>(value.z - mean[2], value.w - mean[3]));
          }
        }
      }
    }
  }
}

}  // namespace dba::ops::cuda::tiles

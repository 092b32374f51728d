#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/core_attend.cuh"
#include "ops/cuda/core_mma.cuh"
#include "ops/cuda/half_types.cuh"

/// What a warp of core_paper.cu does: 16 columns of a projection, or P' and 64 columns of M.
///
/// Products are Σ_k A(i, k) B(j, k). Those with weights split the other operand into two half numbers, value and
/// remainder, and keep 16 bits of it (mma.m16n8k16); those between slots take TF32 operands (m16n8k8), whose rounding
/// of 2⁻¹² is far below that of the half types. Lane 4g + t of a warp gives A rows g and g + 8, B row g, and receives
/// columns 2t and 2t + 1. The order of k is free as long as both operands agree, and so is that of B's rows: they are
/// chosen so that weights load as 16 bytes, and that the result of one product lies in the registers where the next one
/// wants its operand.
namespace dba::ops::cuda::paper {

constexpr int kSlots = 16;
constexpr int kHeadWidth = 64;
constexpr int kLiftWarps = 12;  // four for each of queries, keys, values; 16 columns each
constexpr int kMixWarps = 4;
constexpr int kThreads = 32 * (kLiftWarps + kMixWarps);
constexpr int kStages = 3;
constexpr int kMostNarrow = 64;                    // e
constexpr int kHeld = 16;                          // 16-byte pieces of weights that a lane keeps
constexpr int kMixColumns = 64;                    // of M that a warp makes
constexpr int kMostOut = kMixWarps * kMixColumns;  // d_out
constexpr int kLiftedStride = kHeadWidth + 4;
constexpr int kLiftedFloats = 3 * kSlots * kLiftedStride;

/// Floats between rows of R, whose columns are filled up to tiles of eight: four lanes' rows meet different banks.
__host__ __device__ constexpr int width_stride(int e) {
  return round_up(e, 8) + 4;
}

/// In floats from the start of shared memory.
template <int kDepth>
struct Layout {
  static constexpr int kStride = kDepth + 4;  // of summaries
  static constexpr int kStage = 3 * kSlots * kStride;
  static constexpr int kSums = kStages * kStage;  // r of a stage's rows
  static constexpr int kLifted = kSums + kStages * 3 * kSlots;
  static constexpr int kWidth = kLifted + 2 * kLiftedFloats;  // R

  static int bytes(const CorePaperArguments& given) {
    return 4 * (kWidth + (given.width != nullptr ? kHeadWidth * width_stride(given.e) : 0));
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

template <class T>
__device__ inline void multiply(float (&sum)[4], const SplitTile<T>& a, uint32_t b0, uint32_t b1) {
  mma_16x8x16<T>(sum, a.value, b0, b1);
  mma_16x8x16<T>(sum, a.rest, b0, b1);
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
__device__ inline void load_tile(float (&to)[4], const float* from) {
  const float2 upper = *reinterpret_cast<const float2*>(from);
  const float2 lower = *reinterpret_cast<const float2*>(from + 8 * kLiftedStride);
  to[0] = upper.x, to[1] = upper.y, to[2] = lower.x, to[3] = lower.y;
}

/// Where a column of V lies in a row: a lane of P' V then receives the eight columns that it holds of W_O.
__device__ inline int value_place(int column) {
  return (column & ~31) + 8 * (column / 2 % 4) + 2 * (column / 8 % 4) + column % 2;
}

/// (W X)_h W_hᵀ + r b_h, 16 columns of it; `held` has the weights, tile by tile, a piece for 32 k.
template <class T, int kDepth>
__device__ inline void lift(float (&sum)[2][4], const float* rows, const uint4 (&held)[kHeld]) {
  constexpr int kBlocks = kDepth / 32;
  constexpr int kStride = Layout<kDepth>::kStride;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 upper = *reinterpret_cast<const float4*>(rows + 32 * block + 4 * half);
      const float4 lower = *reinterpret_cast<const float4*>(rows + 8 * kStride + 32 * block + 4 * half);
      const SplitTile<T> left(make_float2(upper.x, upper.y), make_float2(lower.x, lower.y),
                              make_float2(upper.z, upper.w), make_float2(lower.z, lower.w));
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const uint4& b = held[tile * kBlocks + block];
        multiply(sum[tile], left, half == 0 ? b.x : b.z, half == 0 ? b.y : b.w);
      }
    }
  }
}

__device__ inline float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}

__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

/// P' of one head and sequence as the left operand of P' V: tile j has keys 8j to 8j + 7.
__device__ inline void attend(float (&p)[2][4], const CorePaperArguments& given, const float* lifted,
                              const float* width, const SlotMask& mask, int sequence, int head) {
  const int g = static_cast<int>(threadIdx.x / 4 % 8);
  const int t = static_cast<int>(threadIdx.x % 4);
  const float* const mine = lifted + g * kLiftedStride + 2 * t;
  const int stride = width_stride(given.e);
#pragma unroll 1
  for (int tile = 0; tile < (given.e + 7) / 8; ++tile) {
    float narrow[2][4] = {};  // q and k behind R, eight columns
    if (given.width != nullptr) {
#pragma unroll 2
      for (int step = 0; step < kHeadWidth / 8; ++step) {
        const float* const from = width + (8 * step + 2 * t) * stride + 8 * tile + g;
        const uint32_t b[2] = {__float_as_uint(from[0]), __float_as_uint(from[stride])};
#pragma unroll
        for (int which = 0; which < 2; ++which) {
          float a[4];
          load_tile(a, mine + which * kSlots * kLiftedStride + 8 * step);
          multiply(narrow[which], LeftTile(a), b);
        }
      }
    } else {
      load_tile(narrow[0], mine + 8 * tile);
      load_tile(narrow[1], mine + kSlots * kLiftedStride + 8 * tile);
    }
    const LeftTile queries(narrow[0]);
#pragma unroll
    for (int keys = 0; keys < 2; ++keys) {
      multiply(p[keys], queries, {tf32_bits(narrow[1][2 * keys]), tf32_bits(narrow[1][2 * keys + 1])});
    }
  }
  uint32_t kept = ~0u;
  if (mask.on) {
    kept = 0;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {  // bit 2i: row g + 8 (i / 2), key 8 (i % 2) + 2t
      kept |= mask.kept_pair(sequence, head * kSlots + g + i / 2 * 8, i % 2 * 8 + 2 * t) << (2 * i);
    }
  }
  const float scale = kLog2E * rsqrtf(static_cast<float>(given.e));
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

/// M_h = P' V W_O,hᵀ for the warp's columns, `columns` of them at most; `at`: the lane's first entry of M.
template <class T>
__device__ inline void mix(const CorePaperArguments& given, const float (&p)[2][4], const float* v,
                           const uint4 (&held)[kHeld], int64_t at, int columns) {
  const int g = static_cast<int>(threadIdx.x / 4 % 8);
  const int t = static_cast<int>(threadIdx.x % 4);
  const LeftTile weights[2] = {LeftTile(p[0]), LeftTile(p[1])};
  const auto mixed_tiles = [&](int first) {
    float sum[2][4] = {};
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int keys = 0; keys < 2; ++keys) {
        const float* const from = v + (8 * keys + 2 * t) * kLiftedStride + 8 * (first + tile) + g;
        multiply(sum[tile], weights[keys], {tf32_bits(from[0]), tf32_bits(from[kLiftedStride])});
      }
    }
    return SplitTile<T>(make_float2(sum[0][0], sum[0][1]), make_float2(sum[0][2], sum[0][3]),
                        make_float2(sum[1][0], sum[1][1]), make_float2(sum[1][2], sum[1][3]));
  };
  const SplitTile<T> mixed[] = {mixed_tiles(0), mixed_tiles(2), mixed_tiles(4), mixed_tiles(6)};
  float* const m = given.m.m == nullptr ? nullptr : given.m.m + at;
  T* const rounded = given.m.rounded == nullptr ? nullptr : static_cast<T*>(given.m.rounded) + at;
#pragma unroll
  for (int pair = 0; pair < kMixColumns / 16; ++pair) {
    if (16 * pair >= columns) {
      break;
    }
    float sum[2][4] = {};
#pragma unroll
    for (int step = 0; step < kHeadWidth / 16; ++step) {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const uint4& b = held[(2 * pair + tile) * 2 + step / 2];
        multiply(sum[tile], mixed[step], step % 2 == 0 ? b.x : b.z, step % 2 == 0 ? b.y : b.w);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 value = make_float4(sum[0][2 * half], sum[0][2 * half + 1], sum[1][2 * half], sum[1][2 * half + 1]);
      const int to = 8 * half * given.out_width + 16 * pair;
      if (m != nullptr) {
        *reinterpret_cast<float4*>(m + to) = value;
      }
      if (rounded != nullptr) {
        *reinterpret_cast<uint2*>(rounded + to) = make_uint2(pack<T>(value.x, value.y), pack<T>(value.z, value.w));
      }
    }
  }
}

}  // namespace dba::ops::cuda::paper

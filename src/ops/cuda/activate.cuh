#pragma once

#include "ops/cuda/activate.h"
#include "ops/cuda/residual_norm.cuh"
#include "ops/normal_tail.h"

/// What forward and backward share. A thread owns four neighbouring rows, which share one Philox call per column, of
/// kColumns neighbouring columns. It goes through them by pairs of columns and leaves results where it found operands:
/// few registers, many threads.
namespace dba::ops::cuda {

constexpr uint32_t kActivationSite = 4;
constexpr int kPair = 2;
constexpr int kActivateThreads = 128;

__device__ inline float power_of_two(float exponent) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(exponent));
  return value;
}

/// |x|, or where the tail ends; NaN stays.
__device__ inline float tail_place(float x) {
  float value;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(fabsf(x)), "f"(kNormalTailEnd));
  return value;
}

/// For half types, by gelu(x) = max(x, 0) − |x| Φ(−|x|): ops/normal_tail.h. The exponential's own error is 2⁻²².
struct HalfGelu {
  static __device__ float value(float x) {
    const float a = tail_place(x);
    return fmaf(-a, power_of_two(normal_tail_log2(a)), fmaxf(x, 0.0f));
  }
  /// The derivative is s = Φ(−a) − a φ(a) at −a and 1 − s at a.
  static __device__ float slope(float x) {
    // φ(a) = 2^(−a² log₂(e) / 2 − log₂ √(2π))
    constexpr float kHalfLog2E = 0.72134752f;
    constexpr float kLog2Norm = 1.32574806f;
    const float a = tail_place(x);
    const float density = power_of_two(fmaf(a * a, -kHalfLog2E, -kLog2Norm));
    const float s = fmaf(-a, density, power_of_two(normal_tail_log2(a)));
    return x < 0.0f ? s : 1.0f - s;
  }
};

template <class A>
struct ExactGelu {
  static __device__ A below(A x) {
    return A(0.5) * (A(1) + erf(x * A(0.70710678118654752)));
  }
  static __device__ A value(A x) {
    return x * below(x);
  }
  static __device__ A slope(A x) {
    return below(x) + x * A(0.39894228040143268) * exp(A(-0.5) * x * x);
  }
};

template <class A>
struct Relu {
  static __device__ A value(A x) {
    return x <= A(0) ? A(0) : x;
  }
  static __device__ A slope(A x) {
    return x <= A(0) ? A(0) : A(1);
  }
};

template <class T, ActivateKind kind>
using ActivationOf = std::conditional_t<kind == ActivateKind::relu, Relu<WideOf<T>>,
                                        std::conditional_t<sizeof(T) == 2, HalfGelu, ExactGelu<WideOf<T>>>>;

/// The words of `columns` neighbouring columns of a quad of rows, round by round: philox::token_quad for all of them at
/// once, so that they share the keys of a round, which are as dear as its arithmetic. Without dropout all words are 0,
/// which the threshold 0 keeps.
template <int columns>
struct QuadWords {
  philox::Words of[columns] = {};

  __device__ QuadWords(const KeepKey& key, int64_t quad, int column) {
    if (!key.active) {
      return;
    }
    uint32_t key0 = static_cast<uint32_t>(key.seed);
    uint32_t key1 = static_cast<uint32_t>(key.seed >> 32) ^ static_cast<uint32_t>(key.offset >> 32);
#pragma unroll
    for (int i = 0; i < columns; ++i) {
      of[i] = {{static_cast<uint32_t>(quad), static_cast<uint32_t>(column + i) | kActivationSite << 24, 0,
                static_cast<uint32_t>(key.offset)}};
    }
#pragma unroll
    for (int round = 0; round < philox::kRounds; ++round) {
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        const uint64_t product0 = static_cast<uint64_t>(philox::kMultiplier0) * of[i].word[0];
        const uint64_t product1 = static_cast<uint64_t>(philox::kMultiplier1) * of[i].word[2];
        of[i] = {{static_cast<uint32_t>(product1 >> 32) ^ of[i].word[1] ^ key0, static_cast<uint32_t>(product1),
                  static_cast<uint32_t>(product0 >> 32) ^ of[i].word[3] ^ key1, static_cast<uint32_t>(product0)}};
      }
      key0 += philox::kWeyl0;
      key1 += philox::kWeyl1;
    }
  }
};

/// Two neighbouring entries at once.
template <class T, class A>
__device__ inline void narrow_pair(T* to, const A (&values)[kPair]) {
  if constexpr (std::is_same_v<T, __half>) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(values[0], values[1]);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(values[0], values[1]);
  } else {
    to[0] = values[0];
    to[1] = values[1];
  }
}

/// Rows of the quad that begins at row `first`.
__device__ inline int rows_present(int64_t rows, int64_t first) {
  return rows - first < kQuad ? static_cast<int>(rows - first) : kQuad;
}

/// Two entries of the bias.
template <bool whole, class A>
__device__ inline ColumnValues<A, kPair> bias_pair(const void* bias, int column, int d) {
  const auto* const values = static_cast<const A*>(bias);
  if constexpr (whole) {
    using Chunk = std::conditional_t<sizeof(A) == 8, double2, float2>;
    if (values == nullptr) {
      return {};
    }
    const Chunk pair = __ldg(reinterpret_cast<const Chunk*>(values + column));
    return {{pair.x, pair.y}};
  } else {
    return load_columns<kPair>(values, A(0), column, d);
  }
}

/// A row's columns are shared by `tiles` blocks of block.x threads; block.y quads of rows stand in a block.
struct ActivateTiling {
  dim3 block;
  unsigned tiles;
  int64_t quads;

  explicit ActivateTiling(const ActivateShape& shape) : quads((shape.rows + kQuad - 1) / kQuad) {
    const int own = residual_norm_columns(shape.type);
    const int owners = (shape.d + own - 1) / own;
    tiles = static_cast<unsigned>((owners + kActivateThreads - 1) / kActivateThreads);
    const int even = (owners + static_cast<int>(tiles) - 1) / static_cast<int>(tiles);
    // Whole warps, or several rows to a warp.
    const int width = even < kWarp ? even : (even + kWarp - 1) / kWarp * kWarp;
    block = dim3(static_cast<unsigned>(width), static_cast<unsigned>(kActivateThreads / width));
  }
};

/// Calls body with an element of the tokens, the kind and whether rows are accessed by whole packs.
template <class Body>
cudaError_t for_form(const ActivateShape& shape, const Body& each) {
  const auto of_access = [&](auto element, auto kind) {
    return shape.whole ? each(element, kind, std::true_type()) : each(element, kind, std::false_type());
  };
  const auto of_kind = [&](auto element) {
    return shape.kind == ActivateKind::gelu
               ? of_access(element, std::integral_constant<ActivateKind, ActivateKind::gelu>())
               : of_access(element, std::integral_constant<ActivateKind, ActivateKind::relu>());
  };
  switch (shape.type) {
    case TokenType::float16:
      return of_kind(__half());
    case TokenType::bfloat16:
      return of_kind(__nv_bfloat16());
    case TokenType::float32:
      return of_kind(float());
    default:
      return of_kind(double());
  }
}

}  // namespace dba::ops::cuda

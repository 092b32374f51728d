#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/core_mma.cuh"

/// Small matrix products, one warp a tile, operands straight from global or shared memory into registers: the matrices
/// of `core` are read once or twice by a block, so that a copy in shared memory would cost more than it saves.
///
/// A product is Σ_k A(i, k) B(j, k). Each operand is either `Along` (k runs along memory) or `Across` (i runs along
/// memory). Lane 4g + t of a warp holds index g of every tile of eight, and in a block of 32 the eight k from 8t on, so
/// that both kinds load vectors: the order of k within a block is free as long as both operands agree.
namespace dba::ops::cuda {

__device__ inline float widened(float value) {
  return value;
}
__device__ inline float widened(__half value) {
  return __half2float(value);
}
__device__ inline float widened(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

/// `Count` numbers from an address aligned to their size.
template <int Count, class T>
__device__ inline void load_vector(float (&out)[Count], const T* from) {
  constexpr int kBytes = Count * static_cast<int>(sizeof(T));
  constexpr int kChunk = kBytes < 16 ? kBytes : 16;
  constexpr int kEach = kChunk / static_cast<int>(sizeof(T));
  struct alignas(kChunk) Chunk {
    T value[kEach];
  };
  Chunk chunk[Count / kEach];
#pragma unroll
  for (int i = 0; i < Count / kEach; ++i) {
    chunk[i] = reinterpret_cast<const Chunk*>(from)[i];
  }
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    out[i] = widened(chunk[i / kEach].value[i % kEach]);
  }
}

/// A matrix whose rows come in blocks: row j lies at (j / block) · outer + (j % block) · inner.
template <class T>
struct RowMap {
  const T* data;
  int64_t outer;
  int64_t inner;
  int block;

  __device__ const T* row(int j) const {
    return data + (j / block) * outer + (j % block) * inner;
  }
};

/// k runs along memory: A(i, k) = map.row(first + i)[k]. Rows past `count` repeat the last one; k past `depth` is 0.
/// Aligned: rows begin at multiples of 16 bytes and depth is a multiple of 8.
template <class T, bool Aligned>
struct Along {
  using Element = T;
  static constexpr bool kAligned = Aligned;
  RowMap<T> map;
  int first;
  int count;
  int depth;

  template <int Tiles>
  __device__ static int index(int tile, int lane) {
    return tile * 8 + lane;
  }

  template <int Tiles>
  struct Lane {
    using Element = T;
    const T* first;
    int row[Tiles];  // numbers from `first` on: a tile's rows lie within 2³¹ of each other
    int depth;

    template <bool Inside, int K>
    __device__ void load(float (&value)[Tiles][K], int k) const {
#pragma unroll
      for (int tile = 0; tile < Tiles; ++tile) {
        if constexpr (Aligned) {
          if (Inside || k < depth) {
            load_vector(value[tile], first + row[tile] + k);
          } else {
#pragma unroll
            for (int i = 0; i < K; ++i) {
              value[tile][i] = 0.0f;
            }
          }
        } else {
#pragma unroll
          for (int i = 0; i < K; ++i) {
            value[tile][i] = k + i < depth ? widened(first[row[tile] + k + i]) : 0.0f;
          }
        }
      }
    }
  };

  template <int Tiles>
  __device__ Lane<Tiles> at(int lane) const {
    Lane<Tiles> result;
    result.depth = depth;
    result.first = map.row(first);
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
      const int i = first + index<Tiles>(tile, lane);
      result.row[tile] = static_cast<int>(map.row(i < count ? i : count - 1) - result.first);
    }
    return result;
  }
};

/// i runs along memory: A(i, k) = map.row(k)[first + i]; i past `count` and k past `depth` are 0. Without data all of
/// it is 1. Aligned: count is a multiple of Tiles and rows begin at multiples of Tiles numbers.
template <class T, bool Aligned>
struct Across {
  using Element = T;
  static constexpr bool kAligned = Aligned;
  RowMap<T> map;
  int first;
  int count;
  int depth;

  template <int Tiles>
  __device__ static int index(int tile, int lane) {
    return lane * Tiles + tile;
  }

  template <int Tiles>
  struct Lane {
    using Element = T;
    RowMap<T> map;
    int valid;  // of this lane's Tiles columns
    int depth;

    template <bool Inside, int K>
    __device__ void load(float (&value)[Tiles][K], int k) const {
      int within = k % map.block;
      const T* row = map.data + (k / map.block) * map.outer + within * map.inner;
#pragma unroll
      for (int i = 0; i < K; ++i) {
        const bool inside = Inside || k + i < depth;
        if constexpr (Aligned) {
          float run[Tiles];
          if (inside && valid > 0) {
            load_vector(run, row);
          } else {
#pragma unroll
            for (int tile = 0; tile < Tiles; ++tile) {
              run[tile] = 0.0f;
            }
          }
#pragma unroll
          for (int tile = 0; tile < Tiles; ++tile) {
            value[tile][i] = run[tile];
          }
        } else {
#pragma unroll
          for (int tile = 0; tile < Tiles; ++tile) {
            value[tile][i] = inside && tile < valid ? (map.data ? widened(row[tile]) : 1.0f) : 0.0f;
          }
        }
        ++within;
        row += within == map.block ? map.outer - (map.block - 1) * map.inner : map.inner;
        within = within == map.block ? 0 : within;
      }
    }
  };

  template <int Tiles>
  __device__ Lane<Tiles> at(int lane) const {
    const int column = first + lane * Tiles;
    Lane<Tiles> result{map, count - column, depth};
    if (map.data) {
      result.map.data += result.valid > 0 ? column : 0;
    }
    return result;
  }
};

/// The bits of a number of type T, given as float, for the tensor cores.
template <class T>
__device__ inline uint32_t operand_bits(float value) {
  return sizeof(T) == 2 ? __float_as_uint(value) : tf32_bits(value);
}

/// Products of TF32 operands on the tensor cores: their rounding of 2⁻¹² is far below that of half and bfloat16, in
/// which the weights are given and from whose products the summaries come.
struct TensorCores {
  template <bool Inside, int MT, int NT, class A, class B>
  __device__ static void block(float (&sum)[MT][NT][4], const A& a, const B& b, int k, int lane) {
    using Left = typename A::Element;
    using Right = typename B::Element;
    float left[2 * MT][8];
    float right[NT][8];
    a.template load<Inside>(left, k + 8 * (lane & 3));
    b[0].template load<Inside>(right, k + 8 * (lane & 3));
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      uint32_t left_bits[MT][4];
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        left_bits[m][0] = operand_bits<Left>(left[2 * m][2 * step]);
        left_bits[m][1] = operand_bits<Left>(left[2 * m + 1][2 * step]);
        left_bits[m][2] = operand_bits<Left>(left[2 * m][2 * step + 1]);
        left_bits[m][3] = operand_bits<Left>(left[2 * m + 1][2 * step + 1]);
      }
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const uint32_t right_bits[2] = {operand_bits<Right>(right[n][2 * step]),
                                        operand_bits<Right>(right[n][2 * step + 1])};
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          mma_16x8x8(sum[m][n], left_bits[m], right_bits);
        }
      }
    }
  }
  template <int NT, class B>
  __device__ static auto right(const B& b, int lane) {
    using Lane = typename B::template Lane<NT>;
    struct One {
      using Element = typename Lane::Element;
      Lane lanes[1];
      __device__ const Lane& operator[](int i) const {
        return lanes[i];
      }
    };
    return One{{b.template at<NT>(lane >> 2)}};
  }
};

/// True float32: every lane makes its own entries of the sum, which lie where the tensor cores would leave them.
struct FusedMultiplyAdd {
  template <bool Inside, int MT, int NT, class A, class B>
  __device__ static void block(float (&sum)[MT][NT][4], const A& a, const B& b, int k, int /*lane*/) {
    constexpr int kRun = 4;
#pragma unroll 1
    for (int run = 0; run < 32; run += kRun) {
      float left[2 * MT][kRun];
      a.template load<Inside>(left, k + run);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float right[NT][kRun];
        b[half].template load<Inside>(right, k + run);
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
#pragma unroll
          for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int n = 0; n < NT; ++n) {
              sum[m][n][half] = fmaf(left[2 * m][i], right[n][i], sum[m][n][half]);
              sum[m][n][2 + half] = fmaf(left[2 * m + 1][i], right[n][i], sum[m][n][2 + half]);
            }
          }
        }
      }
    }
  }
  template <int NT, class B>
  __device__ static auto right(const B& b, int lane) {
    using Lane = typename B::template Lane<NT>;
    struct Two {
      using Element = typename Lane::Element;
      Lane lanes[2];
      __device__ const Lane& operator[](int i) const {
        return lanes[i];
      }
    };
    const int column = 2 * (lane & 3);
    return Two{{b.template at<NT>(column), b.template at<NT>(column + 1)}};
  }
};

/// sum += A Bᵀ over k_begin ≤ k < k_end, a tile of 16·MT × 8·NT. k_begin is a multiple of 32.
template <class Math, int MT, int NT, class A, class B>
__device__ inline void accumulate(float (&sum)[MT][NT][4], const A& a, const B& b, int k_begin, int k_end) {
  const int lane = threadIdx.x & 31;
  const auto left = a.template at<2 * MT>(lane >> 2);
  const auto right = Math::template right<NT>(b, lane);
  int k = k_begin;
  const int inside = min(k_end, min(a.depth, b.depth));
  constexpr int kAtOnce = MT == 1 && A::kAligned && B::kAligned ? 4 : 1;
#pragma unroll kAtOnce
  for (; k + 32 <= inside; k += 32) {
    Math::template block<true>(sum, left, right, k, lane);
  }
  if (k < k_end) {
    Math::template block<false>(sum, left, right, k, lane);
  }
}

/// visit(i, j, value) for every entry of a tile's sum that this lane holds.
template <class A, class B, int MT, int NT, class Visit>
__device__ inline void for_each_entry(const float (&sum)[MT][NT][4], const Visit& visit) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int m = 0; m < MT; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = A::template index<2 * MT>(2 * m + half, lane >> 2);
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          visit(i, B::template index<NT>(n, 2 * (lane & 3) + pair), sum[m][n][2 * half + pair]);
        }
      }
    }
  }
}

/// The whole of a tile: visit(i, j, value) with i and j counted from the operands' first rows, where both exist.
template <class Math, int MT, int NT, class A, class B, class Visit>
__device__ inline void tile_product(const A& a, const B& b, int depth, const Visit& visit) {
  float sum[MT][NT][4] = {};
  accumulate<Math>(sum, a, b, 0, depth);
  for_each_entry<A, B>(sum, [&](int i, int j, float value) {
    if (a.first + i < a.count && b.first + j < b.count) {
      visit(a.first + i, b.first + j, value);
    }
  });
}

}  // namespace dba::ops::cuda

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "ops/cuda/residual_norm.h"
#include "ops/philox.h"

/// What forward and backward share. A group of `width` threads (a power of two) owns four neighbouring rows, which
/// share one Philox call per column; each thread owns kColumns neighbouring columns of them. One column block per
/// thread keeps whole rows in registers, so that every token is read once.
namespace dba::ops::cuda {

constexpr int kQuad = 4;
constexpr int kWarp = 32;
constexpr uint32_t kResidualSite = 3;

template <class R>
using WideOf = std::conditional_t<std::is_same_v<R, double>, double, float>;

template <class R>
constexpr int kColumns = 16 / sizeof(R);

template <class R>
constexpr int kMaxThreads = sizeof(R) == 2 ? 256 : 512;

/// What is loaded and stored at once: 16 bytes, or 8 of a half type beside float.
template <class T, int columns>
struct alignas(sizeof(T) * columns) Pack {
  T value[columns];
};

/// Entries column … column + columns − 1 of a row; zero beyond d, or all of them where `wanted` is false.
template <int columns, bool whole, class T>
__device__ inline Pack<T, columns> load(const T* row, int column, int d, bool wanted) {
  using Chunk = std::conditional_t<sizeof(T) * columns == 16, uint4, uint2>;
  Pack<T, columns> pack;
  if constexpr (whole) {
    auto& chunk = reinterpret_cast<Chunk&>(pack);
    chunk = Chunk{};
    if (wanted && column < d) {
      chunk = *reinterpret_cast<const Chunk*>(row + column);
    }
  } else {
    for (int i = 0; i < columns; ++i) {
      pack.value[i] = wanted && column + i < d ? row[column + i] : T(0.0f);
    }
  }
  return pack;
}

template <int columns, bool whole, class T>
__device__ inline void store(const Pack<T, columns>& pack, T* row, int column, int d) {
  using Chunk = std::conditional_t<sizeof(T) * columns == 16, uint4, uint2>;
  if constexpr (whole) {
    if (column < d) {
      *reinterpret_cast<Chunk*>(row + column) = reinterpret_cast<const Chunk&>(pack);
    }
  } else {
    for (int i = 0; i < columns; ++i) {
      if (column + i < d) {
        row[column + i] = pack.value[i];
      }
    }
  }
}

template <class A, int columns>
struct ColumnValues {
  A value[columns];
};

/// An operand on columns, or `absent` everywhere. Read again for every quad of rows: registers are dearer than the
/// first-level cache.
template <int columns, class A>
__device__ inline ColumnValues<A, columns> load_columns(const A* values, A absent, int column, int d) {
  ColumnValues<A, columns> result;
#pragma unroll
  for (int i = 0; i < columns; ++i) {
    result.value[i] = values != nullptr && column + i < d ? __ldg(values + column + i) : absent;
  }
  return result;
}

template <class A, class T>
__device__ inline A widen(T value) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half2float(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat162float(value);
  } else {
    return value;
  }
}

template <class T, class A>
__device__ inline T narrow(A value) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else {
    return value;
  }
}

/// Where a thread stands in its block.
struct Place {
  int width;   // threads of a group
  int group;   // which group of the block
  int groups;  // how many
  int column;  // first of the thread's columns

  __device__ Place(int width_, int columns)
      : width(width_),
        group(threadIdx.x / width_),
        groups(blockDim.x / width_),
        column(static_cast<int>(threadIdx.x % width_) * columns) {}
};

struct KeepKey {
  uint64_t seed = 0, offset = 0;
  uint32_t threshold = 0;
  bool active = false;

  __device__ KeepKey(const int64_t* rng, uint32_t threshold_) : threshold(threshold_), active(rng != nullptr) {
    if (active) {
      seed = static_cast<uint64_t>(rng[0]);
      offset = static_cast<uint64_t>(rng[1]);
    }
  }
};

/// Bit row · columns + i: whether column + i of that row of the quad is kept.
template <int columns>
__device__ inline uint32_t keep_bits(const KeepKey& key, int64_t quad, int column) {
  if (!key.active) {
    return ~0u;
  }
  uint32_t bits = 0;
// Two chains at a time hide each other's latency; more would cost the registers of the loads under way.
#pragma unroll 2
  for (int i = 0; i < columns; ++i) {
    const auto words = philox::token_quad(key.seed, key.offset, kResidualSite, 0, static_cast<uint32_t>(column + i),
                                          static_cast<uint32_t>(quad));
#pragma unroll
    for (int row = 0; row < kQuad; ++row) {
      bits |= (words.word[row] >= key.threshold ? 1u : 0u) << (row * columns + i);
    }
  }
  return bits;
}

/// Sums `count` values over the threads of each group, in a fixed order; all threads of the block take part.
/// `board` holds count entries per warp of the block; calls in a row must use two boards in turn.
template <int count, class A>
__device__ inline void sum_over_group(A (&values)[count], const Place& place, A* board) {
  const int reach = place.width < kWarp ? place.width : kWarp;
  for (int step = reach / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      values[i] += __shfl_xor_sync(~0u, values[i], step);
    }
  }
  if (place.width <= kWarp) {
    return;
  }
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x % kWarp == 0) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      board[warp * count + i] = values[i];
    }
  }
  __syncthreads();
  const int warps = place.width / kWarp;
  const int first = place.group * warps;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    A sum = 0;
    for (int w = 0; w < warps; ++w) {
      sum += board[(first + w) * count + i];
    }
    values[i] = sum;
  }
}

/// Threads per quad of rows, and the block they stand in.
struct Launch {
  int width;
  int threads;
  int groups;

  Launch(const ResidualNormShape& shape) {
    const int columns = residual_norm_columns(shape.residual);
    width = 1;
    while (width * columns < shape.d) {
      width *= 2;
    }
    constexpr int kUsual = 128;
    threads = width < kUsual ? kUsual : width;
    groups = threads / width;
  }
};

/// Calls body with a residual and a branch element and whether rows are accessed by whole packs.
template <class Body>
cudaError_t for_types(const ResidualNormShape& shape, const Body& each) {
  const auto body = [&](auto residual, auto branch) {
    return shape.whole ? each(residual, branch, std::true_type()) : each(residual, branch, std::false_type());
  };
  if (shape.residual == TokenType::float64) {
    return body(double(), double());
  }
  if (shape.residual == TokenType::float16) {
    return body(__half(), __half());
  }
  if (shape.residual == TokenType::bfloat16) {
    return body(__nv_bfloat16(), __nv_bfloat16());
  }
  switch (shape.branch) {
    case TokenType::float16:
      return body(float(), __half());
    case TokenType::bfloat16:
      return body(float(), __nv_bfloat16());
    default:
      return body(float(), float());
  }
}

}  // namespace dba::ops::cuda

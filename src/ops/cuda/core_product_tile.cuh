#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/core_mma.cuh"
#include "ops/cuda/core_products.h"
#include "ops/cuda/widened.cuh"

/// One tile of 64×64 of a small product, by eight warps, operands through shared memory with three stages of 32 k on
/// the way. Such a kernel is latency alone: few blocks, each of which runs through its instructions a few times. So
/// code is kept short, and what threads would all work out by themselves is worked out once and left in shared memory.
///
/// A product is Σ_k A(i, k) B(j, k). In memory k runs along an operand's rows, or across them; so it does in shared
/// memory, where lines lie as in memory: line i holds k along, line k holds i across.
namespace dba::ops::cuda::product_tile {

constexpr int kTile = 64;
constexpr int kStep = 32;   // k of a stage
constexpr int kStages = 3;  // a fourth would leave room for two blocks on a multiprocessor instead of three
constexpr int kThreads = 256;
constexpr int kSumStride = kTile + 1;
constexpr int kStepsOfRun = 8;  // a long sum is a sum of sums, which rounds less

/// Numbers from line to line: those that a warp reads at once lie in different banks.
template <class T, bool kAcross>
constexpr int kLine = kAcross ? kTile + 16 / static_cast<int>(sizeof(T)) : kStep + 8;
template <class T>
constexpr int kOperandBytes = kTile* kLine<T, false>* static_cast<int>(sizeof(T));
static_assert(kOperandBytes<float> >= kStep * kLine<float, true> * 4);
static_assert(kOperandBytes<__half> >= kStep * kLine<__half, true> * 2);

__device__ inline int64_t place(const HeadMatrix& matrix, int head, int row) {
  const auto outer = static_cast<unsigned>(row) / static_cast<unsigned>(matrix.block);
  const auto inner = static_cast<unsigned>(row) - outer * static_cast<unsigned>(matrix.block);
  return outer * matrix.outer + inner * matrix.inner + head * matrix.head;
}

/// Starts a copy of kBytes bytes into shared memory, of which all past `valid` become zero.
template <int kBytes>
__device__ inline void copy_async(void* to, const void* from, int valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(valid) : "memory");
  }
}

/// Where a tile lies: its head, its first row and column of the product; and which steps of the depth are summed.
struct TilePlace {
  int head, row, column;
  int first_step, steps;
};

/// One operand's part of a stage: kTile of i, kStep of k.
template <class T, bool kAcross>
struct OperandCopy {
  const HeadMatrix& matrix;
  int first, count;  // of i
  int depth;

  /// Where a line of the stage at k begins in memory; null past the matrix's end. Found by one thread for all.
  __device__ const T* line(int head, int k, int number) const {
    const int row = (kAcross ? k : first) + number;
    return row < (kAcross ? depth : count) ? static_cast<const T*>(matrix.data) + place(matrix, head, row) : nullptr;
  }

  /// Copies in pieces of kBytes; a number of two bytes is copied by hand.
  template <int kBytes>
  __device__ void pieces(T* to, const void* const* lines, int k) const {
    constexpr int kNumbers = kBytes / static_cast<int>(sizeof(T));
    constexpr int kOfLine = (kAcross ? kTile : kStep) / kNumbers;
    constexpr int kPieces = kTile * kStep / kNumbers / kThreads;
    constexpr int kAtOnce = kBytes == 16 ? kPieces : 1;
    const int begin = kAcross ? first : k;
    const int numbers = (kAcross ? count : depth) - begin;
#pragma unroll kAtOnce
    for (int i = 0; i < kPieces; ++i) {
      const int piece = static_cast<int>(threadIdx.x) + i * kThreads;
      const int number = piece % kOfLine * kNumbers;
      const T* const row = static_cast<const T*>(lines[piece / kOfLine]);
      // What lies past the last i reaches no sum that is kept; k past the depth must be zero.
      if (kAcross ? number < numbers : row != nullptr) {
        const int left = row != nullptr ? numbers - number : 0;
        const T* const from = left > 0 ? row + begin + number : static_cast<const T*>(matrix.data);
        T* const out = to + piece / kOfLine * kLine<T, kAcross> + number;
        if constexpr (kBytes == 2) {
          *out = left > 0 ? *from : T(0.0f);
        } else {
          copy_async<kBytes>(out, from, max(0, min(kBytes, left * static_cast<int>(sizeof(T)))));
        }
      }
    }
  }

  __device__ void stage(T* to, const void* const* lines, int k, int chunk) const {
    if (matrix.data == nullptr) {
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x); i < kOperandBytes<T> / static_cast<int>(sizeof(T)); i += kThreads) {
        to[i] = T(1.0f);
      }
    } else if (chunk == 16) {
      pieces<16>(to, lines, k);
    } else if (chunk == 4) {
      pieces<4>(to, lines, k);
    } else if constexpr (sizeof(T) == 2) {
      pieces<2>(to, lines, k);
    }
  }
};

/// An operand in shared memory.
template <class T, bool kAcross>
struct OperandTile {
  const T* data;

  __device__ float at(int i, int k) const {
    return widened(kAcross ? data[k * kLine<T, true> + i] : data[i * kLine<T, false> + k]);
  }
  /// (i, k) and (i, k + 1), for even k.
  __device__ float2 pair(int i, int k) const {
    if constexpr (kAcross) {
      return make_float2(at(i, k), at(i, k + 1));
    } else {
      struct alignas(2 * sizeof(T)) Two {
        T value[2];
      };
      const Two two = *reinterpret_cast<const Two*>(data + i * kLine<T, false> + k);
      return make_float2(widened(two.value[0]), widened(two.value[1]));
    }
  }
};

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

/// Where lines of this stage's copy and of the next begin, of A and B.
using Lines = const void* [2][2][kTile];

/// Leaves the tile's sums in shared memory, rows kSumStride apart.
template <class Math, class A, bool kAAcross, class B, bool kBAcross>
__device__ void accumulate(const Product& product, const TilePlace& at, int a_chunk, int b_chunk, unsigned char* stages,
                           int stage_bytes, Lines& lines) {
  const auto left = [&](int stage) { return reinterpret_cast<A*>(stages + stage * stage_bytes); };
  const auto right = [&](int stage) { return reinterpret_cast<B*>(stages + stage * stage_bytes + kOperandBytes<A>); };
  int part = 0, k = at.first_step * kStep, copies = 0;
  while (part < product.parts && k >= product.part[part].depth) {
    k -= (product.part[part].depth + kStep - 1) / kStep * kStep;
    ++part;
  }
  const auto copy_of_a = [&] {
    return OperandCopy<A, kAAcross>{product.part[part].a, at.row, product.rows, product.part[part].depth};
  };
  const auto copy_of_b = [&] {
    return OperandCopy<B, kBAcross>{product.part[part].b, at.column, product.columns, product.part[part].depth};
  };
  // Lines along k stay the same throughout a part.
  const auto find_lines = [&] {
    const int thread = static_cast<int>(threadIdx.x);
    if (copies < at.steps) {
      if (thread < (kAAcross ? kStep : kTile) && (kAAcross || k == 0 || copies == 0)) {
        lines[kAAcross ? copies % 2 : part % 2][0][thread] = copy_of_a().line(at.head, k, thread);
      }
      const int of_b = thread - kTile;
      if (of_b >= 0 && of_b < (kBAcross ? kStep : kTile) && (kBAcross || k == 0 || copies == 0)) {
        lines[kBAcross ? copies % 2 : part % 2][1][of_b] = copy_of_b().line(at.head, k, of_b);
      }
    }
  };
  const auto copy_next = [&] {
    if (copies < at.steps) {
      const int stage = copies % kStages;
      copy_of_a().stage(left(stage), lines[kAAcross ? copies % 2 : part % 2][0], k, a_chunk);
      copy_of_b().stage(right(stage), lines[kBAcross ? copies % 2 : part % 2][1], k, b_chunk);
      k += kStep;
      if (k >= product.part[part].depth) {
        k = 0;
        ++part;
      }
      ++copies;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  float sum[Math::kSums] = {};
  float run[Math::kSums] = {};
  find_lines();
#pragma unroll 1
  for (int step = 1 - kStages; step < at.steps; ++step) {
    if (step >= 0) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    }
    __syncthreads();
    copy_next();
    find_lines();
    if (step < 0) {
      continue;
    }
    const int stage = step % kStages;
    Math::stage(run, OperandTile<A, kAAcross>{left(stage)}, OperandTile<B, kBAcross>{right(stage)});
    if (step % kStepsOfRun == kStepsOfRun - 1 || step == at.steps - 1) {
#pragma unroll
      for (int i = 0; i < Math::kSums; ++i) {
        sum[i] += run[i];
        run[i] = 0.0f;
      }
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  auto* out = reinterpret_cast<float*>(stages);
#pragma unroll
  for (int i = 0; i < Math::kSums; ++i) {
    out[Math::row(i) * kSumStride + Math::column(i)] = sum[i];
  }
  __syncthreads();
}

}  // namespace dba::ops::cuda::product_tile

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/core_products.h"
#include "ops/cuda/widened.cuh"

/// Operands of a tile of a small product, on their way through shared memory. In memory k runs along an operand's rows,
/// or across them; so it does in shared memory, where lines lie as in memory: line i holds k along, line k holds i
/// across.
namespace dba::ops::cuda::product_tile {

constexpr int kTile = 64;
constexpr int kStep = 32;   // k of a stage
constexpr int kStages = 3;  // a fourth would leave room for two blocks on a multiprocessor instead of three
constexpr int kThreads = 256;

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

  /// Lines along k stay the same from stage to stage. A thread keeps those of its pieces of 16 bytes.
  static constexpr int kKeptNumbers = 16 / static_cast<int>(sizeof(T));
  static constexpr int kKeptOfLine = kStep / kKeptNumbers;
  static constexpr int kKept = kTile / (kThreads / kKeptOfLine);
  struct Kept {
    const T* line[kKept];

    __device__ void find(const void* const* lines) {
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        line[i] = static_cast<const T*>(lines[static_cast<int>(threadIdx.x) / kKeptOfLine + i * (kTile / kKept)]);
      }
    }
  };

  __device__ void stage(T* to, const Kept& kept, int k) const {
    const int number = static_cast<int>(threadIdx.x) % kKeptOfLine * kKeptNumbers;
    const int left = depth - k - number;
    const int bytes = max(0, min(16, left * static_cast<int>(sizeof(T))));
    const int from = left > 0 ? k + number : 0;
    to += static_cast<int>(threadIdx.x) / kKeptOfLine * kLine<T, false> + number;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (kept.line[i] != nullptr) {
        copy_async<16>(to + i * (kTile / kKept) * kLine<T, false>, kept.line[i] + from, bytes);
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

}  // namespace dba::ops::cuda::product_tile

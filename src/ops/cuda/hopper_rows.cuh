#pragma once

#include "ops/cuda/half_types.cuh"
#include "ops/cuda/ranges.cuh"

/// Writing rows of tokens.
namespace dba::ops::cuda::hopper {

/// Rows between and behind the sequences of a range come out as zeros. kThreads threads do it together.
template <class T, int kThreads>
__device__ inline void clear_rows_of_nobody(const SequenceBounds& bounds, int first_row, int last_row,
                                            int first_sequence, void* rows, int width, int thread) {
  int covered = first_sequence > 0 ? static_cast<int>(bounds.end[first_sequence - 1]) : 0;
  covered = max(covered, first_row);
  auto* out = static_cast<T*>(rows);
  for (int sequence = first_sequence; covered < last_row; ++sequence) {
    const bool exists = sequence < bounds.count;
    const int begin = exists ? min(static_cast<int>(bounds.begin[sequence]), last_row) : last_row;
    const int64_t last = static_cast<int64_t>(begin) * width;
    for (int64_t i = static_cast<int64_t>(covered) * width + thread * 8; i < last; i += kThreads * 8) {
      *reinterpret_cast<uint4*>(out + i) = make_uint4(0, 0, 0, 0);
    }
    if (!exists) {
      return;
    }
    covered = max(covered, static_cast<int>(bounds.end[sequence]));
  }
}

/// Four values of each of four neighbouring lanes, transposed: lane q gets the q-th value of every lane.
__device__ inline void transpose_in_quad(uint32_t (&v)[4]) {
  const bool odd = threadIdx.x & 1;
  const bool upper = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(~0u, odd ? v[i] : v[i + 1], 1);
    v[i] = odd ? other : v[i];
    v[i + 1] = odd ? v[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(~0u, upper ? v[i] : v[i + 2], 2);
    v[i] = upper ? other : v[i];
    v[i + 2] = upper ? v[i + 2] : other;
  }
}

/// 64 tokens × kWidth sums in the layout of a product's accumulators, rounded to elements, into rows of `width`; the
/// first `tokens` rows exist. thread: in the warp group.
template <class T, int kWidth>
__device__ inline void write_rows(const float (&sums)[kWidth / 2], T* out, int width, int tokens, int thread) {
  const int row = thread / 32 * 16 + thread % 32 / 4;
  const int quad_lane = thread & 3;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int group = 0; group < kWidth / 32; ++group) {
      uint32_t v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int entry = 4 * (4 * group + j) + 2 * i;
        v[j] = pack<T>(sums[entry], sums[entry + 1]);
      }
      transpose_in_quad(v);
      const int column = (4 * group + quad_lane) * 8;
      if (row + 8 * i < tokens && column < width) {
        *reinterpret_cast<uint4*>(out + static_cast<int64_t>(row + 8 * i) * width + column) =
            make_uint4(v[0], v[1], v[2], v[3]);
      }
    }
  }
}

}  // namespace dba::ops::cuda::hopper

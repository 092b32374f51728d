#pragma once

#include "ops/cuda/fragment_dropout.cuh"
#include "ops/cuda/half_types.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/passes.h"
#include "ops/cuda/ranges.cuh"
#include "ops/cuda/wgmma.cuh"

/// What compress's kernels on Hopper share: how slots and rows are divided, and the loading of score rows.
namespace dba::ops::cuda::hopper {

/// A warp group holds 64 slots.
constexpr int kBlockSlots = 64;

/// Blocks of 64 slots over thread blocks. Two warp groups of a thread block take two slot blocks over the same tokens
/// (a pair); where the number of slot blocks is odd, the last is shared out by tokens: each warp group has a range of
/// rows for itself. Ranges of pairs and of singles are equally long as far as possible, so that all sweep over the
/// tokens at the same pace and the second reader finds them in the L2 cache.
struct SlotDivision {
  int blocks = 0;
  int pairs = 0;
  int pair_ranges = 0;    // thread blocks for each pair
  int single_ranges = 0;  // warp groups for the last block; two to a thread block
  int pair_rows = 0;      // rows in a range
  int single_rows = 0;

  __host__ __device__ int thread_blocks() const {
    return pairs * pair_ranges + single_ranges / 2;
  }
  /// Places for parts of sequences: two for each range of each slot block.
  __host__ __device__ int places() const {
    return 4 * pairs * pair_ranges + 2 * single_ranges;
  }
  __host__ __device__ bool is_single(int block) const {
    return block == 2 * pairs;
  }
  __host__ __device__ int first_place(int block) const {
    return 2 * block * pair_ranges;
  }
  __host__ __device__ int range_rows(int block) const {
    return is_single(block) ? single_rows : pair_rows;
  }
};

inline SlotDivision divide_slots(int slots, int rows, int multiprocessors, int tile_tokens) {
  SlotDivision division;
  division.blocks = (slots + kBlockSlots - 1) / kBlockSlots;
  division.pairs = division.blocks / 2;
  const bool single = division.blocks % 2 != 0;
  // A range shorter than a tile would only make more parts to merge.
  const int most = rows / tile_tokens + 1;
  const auto bounded = [&](int ranges) { return ranges < 1 ? 1 : ranges > most ? most : ranges; };
  if (division.pairs > 0) {
    division.pair_ranges = bounded(2 * multiprocessors / division.blocks);
    division.pair_rows = range_length(rows, division.pair_ranges);
  }
  if (single) {
    const int blocks_left = multiprocessors - division.pairs * division.pair_ranges;
    division.single_ranges = 2 * bounded((blocks_left > 0 ? blocks_left : 1));
    division.single_rows = range_length(rows, division.single_ranges);
  }
  return division;
}

/// What a warp group works on.
struct Worker {
  int block;  // of slots
  int range;  // of rows
  int first_row;
  int last_row;
};

__device__ inline Worker find_worker(const SlotDivision& division, int rows, int group) {
  Worker worker;
  const int pair_blocks = division.pairs * division.pair_ranges;
  const int block = static_cast<int>(blockIdx.x);
  if (block < pair_blocks) {
    worker.block = 2 * (block / division.pair_ranges) + group;
    worker.range = block % division.pair_ranges;
  } else {
    worker.block = 2 * division.pairs;
    worker.range = 2 * (block - pair_blocks) + group;
  }
  const int length = division.range_rows(worker.block);
  worker.first_row = min(rows, worker.range * length);
  worker.last_row = min(rows, worker.first_row + length);
  return worker;
}

/// A bias in float or in elements, or none.
struct Bias {
  const float* floats;
  const void* elements;
  Element type;

  __device__ float operator[](int64_t index) const {
    if (floats != nullptr) {
      return floats[index];
    }
    if (elements == nullptr) {
      return 0.0f;
    }
    return type == Element::float16 ? __half2float(static_cast<const __half*>(elements)[index])
                                    : __bfloat162float(static_cast<const __nv_bfloat16*>(elements)[index]);
  }
};

/// Score rows in the kernel's terms.
struct ScoreRowsView {
  const void* each;
  int64_t each_stride;
  const void* shared;
  Bias each_bias;
  Bias shared_bias;
  int each_rows;
  int rows;     // in all
  int softmax;  // rows that pass a softmax: the first ones
  int width;    // d

  template <class T>
  __device__ const T* row(int64_t sequence, int slot) const {
    return slot < each_rows ? static_cast<const T*>(each) + sequence * each_stride + static_cast<int64_t>(slot) * width
                            : static_cast<const T*>(shared) + static_cast<int64_t>(slot - each_rows) * width;
  }
  __device__ float bias(int64_t sequence, int slot) const {
    if (slot >= rows) {
      return 0.0f;
    }
    if (slot < each_rows) {
      return each_bias[sequence * each_rows + slot];
    }
    return shared_bias[slot - each_rows];
  }
  /// Whether a block of slots looks the same to every sequence.
  __device__ bool same_for_all(int first_slot) const {
    return first_slot >= each_rows || each_stride == 0;
  }
};

inline ScoreRowsView view_of(const ScoreOperand& rows, int width, Element element) {
  return {rows.each,
          rows.each_stride,
          rows.shared,
          {rows.each_bias, rows.each_bias_elements, element},
          {rows.shared_bias, rows.shared_bias_elements, element},
          rows.each_rows,
          rows.rows(),
          rows.rows() - rows.linear,
          width};
}

/// The same number, of unknown origin to the compiler: what depends on it is computed where it is used, and not kept in
/// registers that the products need.
__device__ inline int recomputed(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

constexpr int kGroupThreads = 128;

/// The thread's number in its warp group.
__device__ inline int group_thread() {
  return recomputed(static_cast<int>(threadIdx.x)) % kGroupThreads;
}
/// The thread's number in its warp.
__device__ inline int warp_lane() {
  return recomputed(static_cast<int>(threadIdx.x)) & 31;
}

/// 64 rows of `width` elements into panels of 64 columns; rows and columns that do not exist are zero.
/// row_of(i) is the i-th row or null. kThreads threads do it together; the loads are under way at once.
template <class T, int kPanels, int kThreads, class RowOf>
__device__ inline void load_rows(unsigned char* panels, int width, int this_thread, RowOf row_of) {
  const int thread = recomputed(this_thread);
  constexpr int kChunks = 8 * kPanels;  // of 8 elements in a row
  constexpr int kRounds = kBlockSlots * kChunks / kThreads;
  constexpr int kAtOnce = kRounds < 16 ? kRounds : 16;
#pragma unroll 1
  for (int round = 0; round < kRounds; round += kAtOnce) {
    uint4 values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int index = thread + (round + i) * kThreads;
      const T* source = row_of(index / kChunks);
      const int column = index % kChunks * 8;
      values[i] = make_uint4(0, 0, 0, 0);
      if (source != nullptr && column < width) {
        values[i] = *reinterpret_cast<const uint4*>(source + column);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int index = thread + (round + i) * kThreads;
      const int chunk = index % kChunks;
      *reinterpret_cast<uint4*>(panels + (chunk / 8) * kBlockSlots * kPanelRowBytes +
                                swizzled(index / kChunks, chunk % 8)) = values[i];
    }
  }
}

/// Clears the rows from `first` on in a tile of kRows rows: what lies there belongs to somebody else.
template <int kPanels, int kRows, int kThreads>
__device__ inline void clear_rows(unsigned char* panels, int first, int this_thread) {
  const int thread = recomputed(this_thread);
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    for (int chunk = first * 8 + thread; chunk < kRows * 8; chunk += kThreads) {
      *reinterpret_cast<uint4*>(panels + panel * kRows * kPanelRowBytes + chunk * 16) = make_uint4(0, 0, 0, 0);
    }
  }
}

/// The number of the thread's warp group, known to the compiler to be the same for a whole warp.
__device__ inline int warp_group() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
}

}  // namespace dba::ops::cuda::hopper

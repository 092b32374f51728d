#include "ops/cuda/general_merge.h"

#include <cmath>

#include "ops/cuda/general_launch.cuh"
#include "ops/cuda/general_rows.cuh"

namespace dba::ops::cuda::general {
namespace {

constexpr int kMergeThreads = 256;
constexpr int kRowsOfBlock = kMergeThreads / 32;
constexpr int kEmptyParts = 16;  // blocks that share kMergeThreads sequences, looking for empty ones
constexpr int kSumParts = 1024;  // entries of a block that merges sums

/// A sum that also sums what rounding takes from it (Knuth's two-sum): parts of a sum are many, and what is taken from
/// them one after the other would be most of the error.
class Sum {
 public:
  __device__ void add(float number) {
    const float next = sum_ + number;
    const float added = next - sum_;
    rest_ += (sum_ - (next - added)) + (number - added);
    sum_ = next;
  }
  /// share · number, rounded before it is added.
  __device__ void add(float share, float number) {
    add(__fmul_rn(share, number));
  }
  __device__ float value() const {
    return isfinite(sum_) ? sum_ + rest_ : sum_;
  }

 private:
  float sum_ = 0.0f, rest_ = 0.0f;
};

/// The ranges first … last of the sequence that lies across the beginning of range `boundary` and begins in the one
/// before; first = last where there is none.
struct Span {
  int64_t sequence = 0, begin = 0, end = 0;
  int64_t first = 0, last = 0;

  __device__ int64_t place(int64_t range) const {
    return range == first ? 2 * range + 1 : 2 * range;
  }
};

/// All threads of the block call this. Every sequence that spans ranges begins before exactly one such boundary.
__device__ Span span_across(const Bounds& bounds, const Split& split, int64_t boundary) {
  const int64_t row = boundary * split.range_rows;
  Span span;
  span.sequence = first_sequence_after(bounds, row);
  if (span.sequence >= bounds.count) {
    return span;
  }
  span.begin = bounds.begin[span.sequence];
  span.end = bounds.end[span.sequence];
  if (span.begin < row && span.begin >= row - split.range_rows) {
    span.first = boundary - 1;
    span.last = (span.end - 1) / split.range_rows;
  }
  return span;
}

/// All threads of the block call this: visits the sequences without rows among kMergeThreads of them.
template <class Visit>
__device__ void for_each_empty(const Bounds& bounds, int64_t first, const Visit& visit) {
  __shared__ bool empty[kMergeThreads];
  const int64_t mine = first + threadIdx.x;
  empty[threadIdx.x] = mine < bounds.count && bounds.begin[mine] >= bounds.end[mine];
  if (__syncthreads_or(empty[threadIdx.x])) {
    for (int i = 0; i < kMergeThreads; ++i) {
      if (empty[i]) {
        visit(first + i);
      }
    }
  }
}

__device__ void fill(float* to, int64_t count, float value, int part) {
  for (int64_t i = part * kMergeThreads + static_cast<int64_t>(threadIdx.x); i < count;
       i += kEmptyParts * kMergeThreads) {
    to[i] = value;
  }
}

/// Blocks below (ranges − 1) · groups: kRowsOfBlock rows of one sequence that spans ranges, a warp for each. The
/// others: empty sequences.
__global__ void __launch_bounds__(kMergeThreads)
    merge_summaries_kernel(CompressArguments given, Split split, int chunks, int chunk_width,
                           SummaryPartials partials) {
  extern __shared__ float shares[];  // (kRowsOfBlock, ranges): what each part weighs in one chunk
  const int slots = row_count(given.rows), width = given.x.width;
  const int groups = (slots + kRowsOfBlock - 1) / kRowsOfBlock;
  const int64_t merging = static_cast<int64_t>(split.ranges - 1) * groups;
  if (blockIdx.x >= merging) {
    const auto index = static_cast<int64_t>(blockIdx.x) - merging;
    const int part = static_cast<int>(index % kEmptyParts);
    for_each_empty(given.bounds, index / kEmptyParts * kMergeThreads, [&](int64_t sequence) {
      fill(given.out.c + sequence * slots * width, static_cast<int64_t>(slots) * width, 0.0f, part);
      fill(given.out.r + sequence * slots, slots, 0.0f, part);
      fill(given.out.lse + sequence * slots, slots, -INFINITY, part);
    });
    return;
  }
  const int slot = static_cast<int>(blockIdx.x) % groups * kRowsOfBlock + warp_index();
  const auto span = span_across(given.bounds, split, static_cast<int64_t>(blockIdx.x) / groups + 1);
  const int parts = static_cast<int>(span.last - span.first) + 1;
  if (parts == 1 || slot >= slots) {
    return;
  }
  const bool linear = slot >= slots - given.rows.linear;
  float* share = shares + warp_index() * split.ranges;
  float* c = given.out.c + (span.sequence * slots + slot) * width;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const auto statistic = [&](int part, int which) {
      const int64_t place = span.place(span.first + part);
      return partials.statistics[((place * chunks + chunk) * slots + slot) * 3 + which];
    };
    float top = -INFINITY;
#pragma unroll 8
    for (int part = 0; part < parts; ++part) {
      top = fmaxf(top, statistic(part, 0));
    }
    const float shift = top == -INFINITY ? 0.0f : top;
    for (int part = lane_index(); part < parts; part += 32) {
      share[part] = linear ? 1.0f : expf(statistic(part, 0) - shift);
    }
    __syncwarp();
    Sum sums, dropped_sums;
#pragma unroll 8
    for (int part = 0; part < parts; ++part) {
      sums.add(share[part], statistic(part, 1));
      dropped_sums.add(share[part], statistic(part, 2));
    }
    const float sum = sums.value();
    const float divisor = linear || sum == 0.0f ? 1.0f : sum;
    if (chunk == 0 && lane_index() == 0) {
      given.out.r[span.sequence * slots + slot] = dropped_sums.value() / divisor;
      given.out.lse[span.sequence * slots + slot] =
          linear ? logf(static_cast<float>(span.end - span.begin)) : top + logf(sum);
    }
    const int after = min(width, (chunk + 1) * chunk_width);
    for (int column = chunk * chunk_width + 4 * lane_index(); column < after; column += 128) {
      Sum value[4];
      const int count = min(4, after - column);
      const float* from = partials.c + static_cast<int64_t>(slot) * width + column;
#pragma unroll 4
      for (int part = 0; part < parts; ++part) {
        const float* entries = from + span.place(span.first + part) * slots * width;
        if (width % 4 == 0) {
          const float4 four = *reinterpret_cast<const float4*>(entries);
          value[0].add(share[part], four.x), value[1].add(share[part], four.y);
          value[2].add(share[part], four.z), value[3].add(share[part], four.w);
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            value[j].add(share[part], j < count ? entries[j] : 0.0f);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (j < count) {
          c[column + j] = value[j].value() / divisor;
        }
      }
    }
    __syncwarp();
  }
}

/// Blocks below (ranges − 1) · pieces: kSumParts entries of one sequence that spans ranges. The others: empty ones.
__global__ void __launch_bounds__(kMergeThreads)
    merge_sums_kernel(Bounds bounds, Split split, SequenceSums sums, int pieces) {
  const int64_t merging = static_cast<int64_t>(split.ranges - 1) * pieces;
  if (blockIdx.x >= merging) {
    const auto index = static_cast<int64_t>(blockIdx.x) - merging;
    for_each_empty(bounds, index / kEmptyParts * kMergeThreads, [&](int64_t sequence) {
      fill(sums.sums + sequence * sums.stride, sums.count, 0.0f, static_cast<int>(index % kEmptyParts));
    });
    return;
  }
  const int64_t piece = blockIdx.x % pieces;
  const auto span = span_across(bounds, split, static_cast<int64_t>(blockIdx.x) / pieces + 1);
  if (span.first == span.last) {
    return;
  }
  const int64_t after = min(sums.count, (piece + 1) * kSumParts);
  for (int64_t i = piece * kSumParts + threadIdx.x; i < after; i += kMergeThreads) {
    Sum sum;
#pragma unroll 8
    for (int64_t range = span.first; range <= span.last; ++range) {
      sum.add(sums.partials[span.place(range) * sums.stride + i]);
    }
    sums.sums[span.sequence * sums.stride + i] = sum.value();
  }
}

__global__ void __launch_bounds__(kMergeThreads)
    add_ranges_kernel(float* sums, const float* partials, int ranges, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kMergeThreads + threadIdx.x;
  if (i >= count) {
    return;
  }
  Sum sum;
#pragma unroll 8
  for (int range = 0; range < ranges; ++range) {
    sum.add(partials[range * count + i]);
  }
  sums[i] = sum.value();
}

int64_t blocks_for_empty(const Bounds& bounds) {
  return (bounds.count + kMergeThreads - 1) / kMergeThreads * kEmptyParts;
}

}  // namespace

cudaError_t merge_summaries(const CompressArguments& given, const Split& split, int chunks, int chunk_width,
                            const SummaryPartials& partials, cudaStream_t stream) {
  const int64_t merging =
      static_cast<int64_t>(split.ranges - 1) * ((row_count(given.rows) + kRowsOfBlock - 1) / kRowsOfBlock);
  return launch_kernel(merge_summaries_kernel, merging + blocks_for_empty(given.bounds), kMergeThreads,
                       kRowsOfBlock * split.ranges * static_cast<int>(sizeof(float)), stream, given, split, chunks,
                       chunk_width, partials);
}

cudaError_t merge_sequence_sums(const Bounds& bounds, const Split& split, const SequenceSums& sums,
                                cudaStream_t stream) {
  const auto pieces = static_cast<int>((sums.count + kSumParts - 1) / kSumParts);
  return launch_kernel(merge_sums_kernel, static_cast<int64_t>(split.ranges - 1) * pieces + blocks_for_empty(bounds),
                       kMergeThreads, 0, stream, bounds, split, sums, pieces);
}

cudaError_t add_ranges(float* sums, const float* partials, int ranges, int64_t count, cudaStream_t stream) {
  return launch_kernel(add_ranges_kernel, (count + kMergeThreads - 1) / kMergeThreads, kMergeThreads, 0, stream, sums,
                       partials, ranges, count);
}

}  // namespace dba::ops::cuda::general

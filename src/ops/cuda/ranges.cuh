#pragma once

#include <cstdint>

/// Work is divided by rows, whose number the host knows (below 2³¹); the sequences in them are found on the device.
///
/// The rows are cut into ranges of equal length. Inside a sequence a cut moves on to the next token whose index is a
/// multiple of 64, so that only the end of a sequence leaves a tile unfilled. A sequence whose tokens all fall into
/// one range is finished there; of the others a range holds at most two parts: the end of one that began earlier (kept
/// at place 2 · range) and the beginning of one that goes on (place 2 · range + 1).
namespace dba::ops::cuda {

constexpr int kCutTokens = 64;

struct SequenceBounds {
  const int64_t* begin;
  const int64_t* end;
  int count;
};

/// Rows in a range, where there are to be about `ranges` of them. A range shorter than the distance between cuts could
/// be left without a token in the midst of a sequence.
__host__ __device__ inline int range_length(int rows, int ranges) {
  const int length = (rows + ranges - 1) / ranges;
  return length < kCutTokens ? kCutTokens : length;
}

/// The tokens of one sequence that belong to a range.
struct Part {
  int sequence;
  int begin;       // of the sequence
  int length;      // of the sequence
  int first;       // row of the part's first token
  int tokens;      // of the part
  bool began;      // the sequence began in an earlier range
  bool continues;  // and goes on in a later one

  __device__ bool whole() const {
    return !began && !continues;
  }
  /// Index of the part's first token in its sequence.
  __device__ int first_token() const {
    return first - begin;
  }
};

/// The first row of a sequence that lies at or behind `row`, or the sequence's begin.
__device__ inline int cut(int row, int begin) {
  return row <= begin ? begin : begin + ((row - begin + kCutTokens - 1) & -kCutTokens);
}

/// The first sequence that ends behind `row`. All threads of the block call it together; threads: their number.
__device__ inline int first_sequence_behind(const SequenceBounds& bounds, int row, int threads) {
  int low = 0;
  int high = bounds.count;
  while (low < high) {
    const int step = (high - low + threads - 1) / threads;
    const int probe = low + static_cast<int>(threadIdx.x) * step;
    const bool before = probe < high && bounds.end[probe] <= row;
    const int before_count = __syncthreads_count(before);
    if (before_count == 0) {
      break;
    }
    high = min(high, low + before_count * step);
    low += (before_count - 1) * step + 1;
  }
  return low;
}

/// The same for two rows at once.
__device__ inline void first_sequences_behind(const SequenceBounds& bounds, int row, int other_row, int threads,
                                              int& first, int& other) {
  if (bounds.count <= threads) {
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t end = thread < bounds.count ? bounds.end[thread] : INT64_MAX;
    first = __syncthreads_count(end <= row);
    other = __syncthreads_count(end <= other_row);
  } else {
    first = first_sequence_behind(bounds, row, threads);
    other = first_sequence_behind(bounds, other_row, threads);
  }
}

/// Walks over the parts in a range of rows, in order. Each thread that walks does so alone; bounds are fetched one
/// sequence ahead.
class PartWalk {
 public:
  __device__ PartWalk(const SequenceBounds& bounds, int first_row, int last_row, int first_sequence)
      : bounds_(bounds), first_row_(first_row), last_row_(last_row), next_(first_sequence) {
    fetch();
  }

  __device__ bool next(Part& part) {
    while (next_ < bounds_.count && begin_ < last_row_) {
      const int begin = begin_;
      const int end = end_;
      part.sequence = next_;
      ++next_;
      fetch();
      const int from = min(cut(first_row_, begin), end);
      const int to = min(cut(last_row_, begin), end);
      if (from < to) {
        part.begin = begin;
        part.length = end - begin;
        part.first = from;
        part.tokens = to - from;
        part.began = from > begin;
        part.continues = to < end;
        return true;
      }
    }
    return false;
  }

 private:
  __device__ void fetch() {
    if (next_ < bounds_.count) {
      begin_ = static_cast<int>(bounds_.begin[next_]);
      end_ = static_cast<int>(bounds_.end[next_]);
    }
  }

  const SequenceBounds& bounds_;
  int first_row_, last_row_;
  int next_;
  int begin_ = 0, end_ = 0;
};

/// Where the part of `sequence` that lies in `range` is kept.
__device__ inline int part_place(int range, const Part& part) {
  return 2 * range + (part.began ? 0 : 1);
}

}  // namespace dba::ops::cuda

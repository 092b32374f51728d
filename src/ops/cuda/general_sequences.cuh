#pragma once

#include <cstdint>

#include "ops/cuda/passes.h"
#include "ops/philox.h"

/// Which tokens a block of threads has: a range of rows, the sequences that reach into it, and their dropout.
namespace dba::ops::cuda::general {

/// The rows [0, rows) in ranges of equal length. A sequence within one range is finished there; one that spans several
/// leaves a partial result in each. Range i keeps at most two: place 2i for the sequence that comes from the range
/// before, place 2i + 1 for the one that begins in it and goes on into the next.
struct Split {
  int64_t rows = 0;
  int64_t range_rows = 0;
  int ranges = 0;

  __host__ __device__ int places() const {
    return ranges > 1 ? 2 * ranges : 0;
  }
};

/// The part of a sequence that lies in a range or tile of rows.
struct Segment {
  int64_t sequence;
  int64_t begin, end;    // of the sequence
  int64_t first, after;  // the rows of the part
};

/// All threads of the block call this: the first sequence whose end lies after `row`, or the count.
__device__ inline int64_t first_sequence_after(const Bounds& bounds, int64_t row) {
  int64_t low = 0, high = bounds.count;
  const int64_t threads = blockDim.x;
  while (low < high) {
    const int64_t step = (high - low + threads - 1) / threads;
    const int64_t probe = low + (threadIdx.x + 1) * step - 1;
    const int64_t before = __syncthreads_count(probe < high && bounds.end[probe] <= row);
    high = min(high, low + (before + 1) * step - 1);
    low += before * step;
  }
  return low;
}

/// All threads of the block call this: visits, in order, the segments of the sequences that have rows in [lo, hi).
template <class Visit>
__device__ inline void for_each_segment(const Bounds& bounds, int64_t lo, int64_t hi, const Visit& visit) {
  for (int64_t b = first_sequence_after(bounds, lo); b < bounds.count; ++b) {
    const int64_t begin = bounds.begin[b], end = bounds.end[b];
    if (begin >= hi) {
      break;
    }
    if (begin < end) {
      visit(Segment{b, begin, end, max(begin, lo), min(end, hi)});
    }
  }
}

/// Where range i leaves a segment's partial result; −1: the segment is the whole sequence.
__device__ inline int64_t place_of(const Segment& segment, int64_t range) {
  if (segment.begin < segment.first) {
    return 2 * range;
  }
  return segment.after < segment.end ? 2 * range + 1 : -1;
}

/// Dropout at one site.
struct Dropping {
  const int64_t* rng = nullptr;  // null without dropout
  uint32_t threshold = 0;
  float scale = 1.0f;  // of what is kept
};

inline Dropping dropping(const DropoutKey& key) {
  if (key.p <= 0.0) {
    return {};
  }
  return {key.rng, philox::threshold(key.p), static_cast<float>(1.0 / (1.0 - key.p))};
}

constexpr uint32_t kCompressSite = 0;
constexpr uint32_t kRestoreSite = 2;

/// Which of kTokens × kSlots weights are kept: four bits, one per token of a quad, in each byte [slot][quad]. A tile
/// may begin within a quad, so it touches one quad more than it has.
template <int kTokens, int kSlots>
struct KeepBits {
  static constexpr int kQuads = kTokens / 4 + 1;
  uint8_t bits[kSlots][kQuads];
  int phase;  // the tile's first token within its quad

  /// All threads of the block call this; a barrier stands between it and the first kept(). slot_of(i) may be negative:
  /// no such slot. `token`: index of the tile's first token in its sequence.
  template <class SlotOf>
  __device__ void draw(const Dropping& dropping, uint32_t site, int64_t sequence, int64_t token,
                       const SlotOf& slot_of) {
    const auto seed = static_cast<uint64_t>(dropping.rng[0]), offset = static_cast<uint64_t>(dropping.rng[1]);
    for (int i = static_cast<int>(threadIdx.x); i < kSlots * kQuads; i += static_cast<int>(blockDim.x)) {
      const int slot = slot_of(i / kQuads);
      if (slot < 0) {
        continue;
      }
      const auto words = philox::token_quad(seed, offset, site, static_cast<uint32_t>(sequence),
                                            static_cast<uint32_t>(slot), static_cast<uint32_t>(token / 4 + i % kQuads));
      unsigned keep = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        keep |= (words.word[j] >= dropping.threshold ? 1u : 0u) << j;
      }
      bits[i / kQuads][i % kQuads] = static_cast<uint8_t>(keep);
    }
    if (threadIdx.x == 0) {
      phase = static_cast<int>(token & 3);
    }
  }

  __device__ bool kept(int slot, int token) const {
    const int at = phase + token;
    return bits[slot][at >> 2] >> (at & 3) & 1;
  }
};

}  // namespace dba::ops::cuda::general

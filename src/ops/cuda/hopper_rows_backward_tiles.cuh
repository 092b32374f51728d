#pragma once

#include "ops/cuda/hopper_compress_backward.cuh"

/// The shared memory of the kernel that makes dA, the tokens of a thread block, and the thread that brings them.
namespace dba::ops::cuda::hopper::rows_backward {

constexpr int kTokens = 64;
constexpr int kStages = 3;  // what is left beside score rows and dC of two groups at 256 columns
constexpr int kThreads = 384;

struct RowsKernel {
  BackwardKernel s;
  SlotDivision division;
  int each_rows;
  float* deach;             // (B, each_rows, d)
  float* parts;             // (places of the division, 64, d): sums of sequences that one range has not whole
  RangeParts shared_parts;  // of rows that all sequences share
};

/// What the producer says of a tile; `tokens` 0: there are no more.
struct TileNote {
  int sequence;
  int first_token;  // of the tile in its sequence
  int tokens;
  int length;  // of the sequence
  int begins;  // the part's first tile
  int ends;    // the part's last tile
  int began;   // the part's sequence began in an earlier range
  int whole;
};

/// In shared memory: the tiles, score rows and dC of the first group, those of the second, notes, barriers.
template <int kPanels>
struct Layout {
  static constexpr int kTile = kPanels * kTokens * kPanelRowBytes;
  static constexpr int kRowsPanel = kBlockSlots * kPanelRowBytes;
  static constexpr int kRows = kPanels * kRowsPanel;
  static constexpr int kRowsOffset = kStages * kTile;
  static constexpr int kGroupRows = 2 * kRows;  // score rows, then dC
  static constexpr int kNotes = kRowsOffset + 2 * kGroupRows;
  static constexpr int kBarriers = kNotes + kStages * static_cast<int>(sizeof(TileNote));
  static constexpr int kBytes = kBarriers + 2 * kStages * 8 + 1024;  // to align
  static_assert(kBytes <= 227 * 1024);
};

/// A thread block's place: pairs first, then singles.
struct Place {
  bool single;
  int first_block;
  int range;
  int first_row;
  int last_row;
};

__device__ inline Place find_place(const SlotDivision& division, int rows) {
  Place place;
  const int index = static_cast<int>(blockIdx.x);
  const int pair_blocks = division.pairs * division.pair_ranges;
  place.single = index >= pair_blocks;
  place.first_block = place.single ? 2 * division.pairs : 2 * (index / division.pair_ranges);
  place.range = place.single ? index - pair_blocks : index % division.pair_ranges;
  const int length = division.range_rows(place.first_block);
  place.first_row = min(rows, place.range * length);
  place.last_row = min(rows, place.first_row + length);
  return place;
}

template <int kPanels>
struct Block {
  using L = Layout<kPanels>;
  const RowsKernel& k;
  unsigned char* shared;

  __device__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(shared + L::kBarriers) + stage;
  }
  __device__ uint64_t* empty(int stage) const {
    return full(kStages + stage);
  }
  __device__ TileNote& note(int stage) const {
    return reinterpret_cast<TileNote*>(shared + L::kNotes)[stage];
  }
  __device__ unsigned char* tile(int stage) const {
    return shared + stage * L::kTile;
  }

  /// Sends the tiles of the range one after the other, and word that there are no more.
  __device__ void feed(const CUtensorMap& map, const Place& place, int first_sequence) {
    PartWalk walk(k.s.bounds, place.first_row, place.last_row, first_sequence);
    Part part;
    RingPlace<kStages> ring;
    while (walk.next(part)) {
      for (int done = 0; done < part.tokens; done += kTokens) {
        const int left = part.tokens - done;
        barrier_wait(empty(ring.stage), ring.parity ^ 1);
        note(ring.stage) = {part.sequence, part.first_token() + done, min(left, kTokens), part.length,
                            done == 0,     left <= kTokens,           part.began,         part.whole()};
        barrier_expect(full(ring.stage), L::kTile);
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          copy_box(tile(ring.stage) + panel * kTokens * kPanelRowBytes, &map, panel * kPanelColumns, part.first + done,
                   full(ring.stage));
        }
        ring.advance();
      }
    }
    barrier_wait(empty(ring.stage), ring.parity ^ 1);
    note(ring.stage).tokens = 0;
    barrier_arrive(full(ring.stage));
  }
};

}  // namespace dba::ops::cuda::hopper::rows_backward

#pragma once

#include "ops/cuda/hopper_compress_backward.cuh"

/// The shared memory of the kernel that makes dX, and the thread that brings tokens and blocks of rows.
namespace dba::ops::cuda::hopper::tokens_backward {

constexpr int kTokens = 64;  // of a warp group; a tile has two
constexpr int kEntries = 5;  // blocks of 64 rows in flight: what is left beside a tile at 256 columns
/// Notes come with the entry of dC. The one two blocks on takes the place of the score rows, which are given back after
/// the notes were read.
constexpr int kNotePlaces = 2;
static_assert(kEntries <= 2 * kNotePlaces + 1);
constexpr int kThreads = 384;
constexpr int kClearers = 96;  // threads of the producer that clear rows of no sequence

struct TokensKernel {
  BackwardKernel s;
  int range_rows;
  int blocks;          // of compress's rows
  int restore_blocks;  // of restore's
  void* dx;            // (N, d) elements
};

/// What the producer says of a tile; `tokens` 0: there are no more.
struct TileNote {
  int sequence;
  int first_token;  // of the tile in its sequence
  int row;          // of X
  int tokens;
  int length;  // of the sequence
};

/// In shared memory: a tile of tokens, the ring of entries, the notes of rows, the tile's note, barriers. An entry
/// holds 64 rows of d columns, or restore's gradient of the scores of the tile's tokens and 64 slots.
template <int kPanels>
struct Layout {
  static constexpr int kHalf = kPanels * kTokens * kPanelRowBytes;
  static constexpr int kRowsBytes = kPanels * kBlockSlots * kPanelRowBytes;
  static constexpr int kScoresBytes = 2 * kTokens * kPanelRowBytes;
  static constexpr int kEntry = kRowsBytes > kScoresBytes ? kRowsBytes : kScoresBytes;
  static constexpr int kEntriesOffset = 2 * kHalf;
  static constexpr int kBlockNotes = kEntriesOffset + kEntries * kEntry;
  static constexpr int kNote = kBlockNotes + kNotePlaces * static_cast<int>(sizeof(BlockNotes));
  static constexpr int kBarriers = kNote + 64;
  static constexpr int kBytes = kBarriers + (2 * kEntries + 2) * 8 + 1024;  // to align
  static_assert(kBytes <= 227 * 1024 && sizeof(TileNote) <= 64);
};

struct Maps {
  CUtensorMap x, rows, dc, restore_rows, dscores;
};

template <int kPanels>
struct Block {
  using L = Layout<kPanels>;
  const TokensKernel& k;
  unsigned char* shared;

  __device__ uint64_t* full(int entry) const {
    return reinterpret_cast<uint64_t*>(shared + L::kBarriers) + entry;
  }
  __device__ uint64_t* empty(int entry) const {
    return full(kEntries + entry);
  }
  __device__ uint64_t* x_full() const {
    return full(2 * kEntries);
  }
  __device__ uint64_t* x_empty() const {
    return full(2 * kEntries + 1);
  }
  __device__ TileNote& note() const {
    return *reinterpret_cast<TileNote*>(shared + L::kNote);
  }
  __device__ BlockNotes& notes(int place) const {
    return reinterpret_cast<BlockNotes*>(shared + L::kBlockNotes)[place];
  }
  __device__ unsigned char* entry(int index) const {
    return shared + L::kEntriesOffset + index * L::kEntry;
  }
  __device__ int first_row() const {
    return min(k.s.rows_in_all, static_cast<int>(blockIdx.x) * k.range_rows);
  }
  __device__ int last_row() const {
    return min(k.s.rows_in_all, first_row() + k.range_rows);
  }

  /// Tile after tile: its tokens, then score rows and dC block by block, then restore's rows and their gradient.
  __device__ void feed(const Maps& maps, int first_sequence) {
    PartWalk walk(k.s.bounds, first_row(), last_row(), first_sequence);
    Part part;
    RingPlace<kEntries> ring;
    uint32_t x_parity = 1;
    int note_place = 0;
    const auto send = [&](const CUtensorMap& map, int row, int index, const BlockNotes* with = nullptr) {
      barrier_wait(empty(ring.stage), ring.parity ^ 1);
      barrier_expect(full(ring.stage), L::kRowsBytes + (with == nullptr ? 0 : sizeof(BlockNotes)));
      if (with != nullptr) {
        copy_bytes(&notes(note_place), with, sizeof(BlockNotes), full(ring.stage));
        note_place = (note_place + 1) % kNotePlaces;
      }
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        copy_box(entry(ring.stage) + panel * kBlockSlots * kPanelRowBytes, &map, panel * kPanelColumns, row, index,
                 full(ring.stage));
      }
      ring.advance();
    };
    while (walk.next(part)) {
      for (int done = 0; done < part.tokens; done += 2 * kTokens) {
        const int row = part.first + done;
        barrier_wait(x_empty(), x_parity);
        x_parity ^= 1;
        note() = {part.sequence, part.first_token() + done, row, min(part.tokens - done, 2 * kTokens), part.length};
        barrier_expect(x_full(), 2 * L::kHalf);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel) {
            copy_box(shared + half * L::kHalf + panel * kTokens * kPanelRowBytes, &maps.x, panel * kPanelColumns,
                     row + half * kTokens, x_full());
          }
        }
        for (int block = 0; block < k.blocks; ++block) {
          send(maps.rows, block * kBlockSlots, k.s.prepared.rows_differ ? part.sequence : 0);
          send(maps.dc, block * kBlockSlots, part.sequence,
               k.s.prepared.notes + static_cast<int64_t>(part.sequence) * k.blocks + block);
        }
        for (int block = 0; block < k.restore_blocks; ++block) {
          send(maps.restore_rows, block * kBlockSlots, 0);
          barrier_wait(empty(ring.stage), ring.parity ^ 1);
          barrier_expect(full(ring.stage), L::kScoresBytes);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            copy_box(entry(ring.stage) + half * kTokens * kPanelRowBytes, &maps.dscores, block * kPanelColumns,
                     row + half * kTokens, full(ring.stage));
          }
          ring.advance();
        }
      }
    }
    barrier_wait(x_empty(), x_parity);
    note().tokens = 0;
    barrier_arrive(x_full());
  }
};

}  // namespace dba::ops::cuda::hopper::tokens_backward

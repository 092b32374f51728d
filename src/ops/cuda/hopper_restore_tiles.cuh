#pragma once

#include "ops/cuda/hopper_compress.cuh"

/// Restore's shared memory on Hopper, and the warp group that fills and empties it: one thread brings tokens and M,
/// three warps take rows of Y away.
namespace dba::ops::cuda::hopper::restoring {

/// A consumer's tile: 64 tokens, one row of the product each.
constexpr int kTokens = 64;
constexpr int kThreads = 384;
constexpr int kWriters = 96;  // threads of the producer that write rows
constexpr int kMostStages = 8;
constexpr uint32_t kSite = 2;

struct RestoreKernel {
  int rows_in_all;
  int range_rows;
  SequenceBounds bounds;
  ScoreRowsView rows;
  int slots;        // S
  int slot_blocks;  // of 64
  int d_p;
  bool linear;
  int stages;
  int m_buffers;
  const int64_t* rng;
  uint32_t threshold;
  float keep_scale;
  int out_width;
  Bias out_bias;
  void* y;
};

/// What the producer says of a tile; `tokens` 0: there are no more.
struct TileNote {
  int sequence;
  int first_token;
  int row;
  int tokens;
  int part;    // counts the parts, to find M's buffer
  int leaves;  // the last tile that this consumer has of the part
};

/// Where things lie in shared memory: tiles, F, M's buffers, biases, notes, barriers.
template <int kPanels>
struct Layout {
  static constexpr int kTile = kPanels * kTokens * kPanelRowBytes;
  static constexpr int kBlock = kPanels * kBlockSlots * kPanelRowBytes;  // 64 rows of F or M
  int tiles, f, m, bias, out_bias, notes, barriers, bytes;

  __host__ __device__ Layout(int stages, int slot_blocks, int m_buffers) {
    tiles = 0;
    f = tiles + stages * kTile;
    m = f + slot_blocks * kBlock;
    bias = m + m_buffers * slot_blocks * kBlock;
    out_bias = bias + slot_blocks * kBlockSlots * 4;
    notes = out_bias + kPanels * kPanelColumns * 4;
    barriers = notes + kMostStages * static_cast<int>(sizeof(TileNote));
    bytes = barriers + (3 * kMostStages + 4) * 8 + 1024;
  }
};

template <class T, int kPanels>
struct Block {
  const RestoreKernel& k;
  unsigned char* shared;
  Layout<kPanels> at;

  __device__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(shared + at.barriers) + stage;
  }
  __device__ uint64_t* empty(int stage) const {
    return full(kMostStages + stage);
  }
  /// The tile's place holds rows of Y.
  __device__ uint64_t* mixed(int stage) const {
    return full(2 * kMostStages + stage);
  }
  __device__ uint64_t* m_full(int buffer) const {
    return full(3 * kMostStages + buffer);
  }
  __device__ uint64_t* m_empty(int buffer) const {
    return full(3 * kMostStages + 2 + buffer);
  }
  __device__ TileNote& note(int stage) const {
    return reinterpret_cast<TileNote*>(shared + at.notes)[stage];
  }
  __device__ unsigned char* tile(int stage) const {
    return shared + at.tiles + stage * Layout<kPanels>::kTile;
  }
  __device__ unsigned char* m(int part) const {
    return shared + at.m + (part % k.m_buffers) * k.slot_blocks * Layout<kPanels>::kBlock;
  }
  __device__ int first_row() const {
    return min(k.rows_in_all, static_cast<int>(blockIdx.x) * k.range_rows);
  }
  __device__ int last_row() const {
    return min(k.rows_in_all, first_row() + k.range_rows);
  }

  /// One thread sends the tiles on their way.
  __device__ void feed(const CUtensorMap& map, const CUtensorMap& m_map, int first_sequence) {
    PartWalk walk(k.bounds, first_row(), last_row(), first_sequence);
    Part part;
    int stage = 0;
    uint32_t parity = 1;
    const auto advance = [&] {
      if (++stage == k.stages) {
        stage = 0;
        parity ^= 1;
      }
    };
    int index = 0;
    for (; walk.next(part); ++index) {
      const int buffer = index % k.m_buffers;
      barrier_wait(m_empty(buffer), (index / k.m_buffers & 1) ^ 1);
      barrier_expect(m_full(buffer), k.slot_blocks * Layout<kPanels>::kBlock);
      if (part.tokens <= kTokens) {  // one consumer has no tile of it, and nothing to let go
        for (int arrival = 0; arrival < 4 * kWarpArrivals; ++arrival) {
          barrier_arrive(m_empty(buffer));
        }
      }
      for (int slot_block = 0; slot_block < k.slot_blocks; ++slot_block) {
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          copy_box(m(index) + slot_block * Layout<kPanels>::kBlock + panel * kBlockSlots * kPanelRowBytes, &m_map,
                   panel * kPanelColumns, slot_block * kBlockSlots, part.sequence, m_full(buffer));
        }
      }
      for (int done = 0; done < part.tokens; done += kTokens) {
        barrier_wait(empty(stage), parity);
        note(stage) = {
            part.sequence, part.first_token() + done,        part.first + done, min(kTokens, part.tokens - done),
            index,         done + 2 * kTokens >= part.tokens};
        barrier_expect(full(stage), Layout<kPanels>::kTile);
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          copy_box(tile(stage) + panel * kTokens * kPanelRowBytes, &map, panel * kPanelColumns, part.first + done,
                   full(stage));
        }
        advance();
      }
    }
    for (int consumer = 0; consumer < 2; ++consumer) {
      barrier_wait(empty(stage), parity);
      note(stage).tokens = 0;
      barrier_arrive(full(stage));
      advance();
    }
  }

  /// Three warps send finished rows to Y: whole tiles through the copy engine, the last ones of a part row by row.
  __device__ void write_tiles(const CUtensorMap& y_map, int writer) {
    int stage = 0;
    uint32_t parity = 0;
    while (true) {
      barrier_wait(full(stage), parity);
      const TileNote& tile_note = note(stage);
      if (tile_note.tokens == 0) {
        return;
      }
      barrier_wait(mixed(stage), parity);
      if (tile_note.tokens < kTokens) {
        write_some_rows(stage, writer);
      } else if (writer == 0) {
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          if (panel * kPanelColumns < k.out_width) {
            store_box(&y_map, panel * kPanelColumns, tile_note.row, tile(stage) + panel * kTokens * kPanelRowBytes);
          }
        }
        await_stored_boxes();
      }
      barrier_arrive_as_warp(empty(stage));
      if (++stage == k.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

  __device__ void write_some_rows(int stage, int writer) {
    const TileNote& tile_note = note(stage);
    const int chunks = k.out_width / 8;
    auto* y = static_cast<T*>(k.y) + static_cast<int64_t>(tile_note.row) * k.out_width;
#pragma unroll 4
    for (int index = writer; index < tile_note.tokens * chunks; index += kWriters) {
      const int chunk = index % chunks;
      reinterpret_cast<uint4*>(y)[index] = *reinterpret_cast<const uint4*>(
          tile(stage) + chunk / 8 * kTokens * kPanelRowBytes + swizzled(index / chunks, chunk % 8));
    }
    publish_shared();  // the copy engine overwrites what was read here
  }
};

}  // namespace dba::ops::cuda::hopper::restoring

#pragma once

#include "ops/cuda/hopper_compress.cuh"
#include "ops/cuda/hopper_merge.cuh"

/// Compress's shared memory on Hopper, and the thread that fills it with tokens.
namespace dba::ops::cuda::hopper::compressing {

/// Tokens in a tile. Scores of 64 slots × 64 tokens take 32 registers a thread and their rounded weights 16, beside 128
/// for the sums over 256 columns; with 80 tokens registers spill, which costs more than the fewer reads of the score
/// rows gain (docs/kernels.md).
constexpr int kTokens = 64;
constexpr int kThreads = 384;

struct CompressKernel {
  int rows_in_all;
  SequenceBounds bounds;
  ScoreRowsView rows;
  SlotDivision division;
  const int64_t* rng;
  uint32_t threshold;
  float keep_scale;
  float* c;
  float* r;
  float* lse;
  PartStore parts;
};

/// What the producer says of a tile; `tokens` 0: there are no more.
struct TileNote {
  int sequence;
  int first_token;  // of the tile in its sequence
  int tokens;       // in the tile that belong to the part
  int length;       // of the sequence
  int begins;       // the part's first tile
  int ends;         // the part's last tile
  int place;        // where the part is kept, or −1: it is a whole sequence
};

/// In shared memory: the first consumer's score rows, the stages, the second consumer's rows. A tile takes as much room
/// as 64 rows: two consumers of the same rows have a stage more, in place of the second copy. A tile stays until the
/// next one's scores are issued, so that a consumer with two stages of its own would wait for every tile; it has three.
template <int kPanels>
struct Layout {
  static constexpr int kStages = kPanels == 4 ? 5 : 7;  // as many as fit at 256 columns
  static constexpr int kMostStages = kStages + 1;
  static constexpr int kTilePanel = kTokens * kPanelRowBytes;
  static constexpr int kTile = kPanels * kTilePanel;
  static constexpr int kRowsPanel = kBlockSlots * kPanelRowBytes;
  static constexpr int kTilesOffset = kPanels * kRowsPanel;
  static constexpr int kSecondRowsOffset = kTilesOffset + kStages * kTile;
  static constexpr int kBarrierOffset = kTilesOffset + kMostStages * kTile;
  static constexpr int kNotesOffset = kBarrierOffset + 2 * kMostStages * 8;
  static constexpr int kBytes = kNotesOffset + kMostStages * static_cast<int>(sizeof(TileNote)) + 1024;  // to align
  static_assert(kTilePanel == kRowsPanel && kBytes <= 227 * 1024);

  /// Of one stream of tiles.
  __device__ static int stages(bool single, bool same_rows) {
    return !single ? kStages : (same_rows ? kMostStages : kStages) / 2;
  }
};

/// The producer's side of one worker's tiles.
template <int kPanels>
struct TileFeed {
  PartWalk walk;
  int range;
  int first_stage, stages;
  Part part{};
  int done = 0;
  int stage = 0;
  uint32_t parity = 1;  // the first round finds every stage empty

  /// Sends the next tile on its way, or word that there is none; then false.
  __device__ bool step(const CUtensorMap& map, unsigned char* tiles, TileNote* notes, uint64_t* full, uint64_t* empty) {
    if (done >= part.tokens) {
      done = 0;
      if (!walk.next(part)) {
        part.tokens = 0;
      }
    }
    const int at = first_stage + stage;
    barrier_wait(empty + at, parity);
    const int left = part.tokens - done;
    notes[at] = {part.sequence,
                 part.first_token() + done,
                 min(left, kTokens),
                 part.length,
                 done == 0,
                 left <= kTokens,
                 part.whole() ? -1 : part_place(range, part)};
    if (left == 0) {
      barrier_arrive(full + at);
      return false;
    }
    barrier_expect(full + at, Layout<kPanels>::kTile);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      copy_box(tiles + at * Layout<kPanels>::kTile + panel * Layout<kPanels>::kTilePanel, &map, panel * kPanelColumns,
               part.first + done, full + at);
    }
    done += kTokens;
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
    return true;
  }
};

/// Feeds both consumers: a pair from one stream of tiles, singles from one each.
template <int kPanels>
__device__ inline void produce(const CUtensorMap& map, const CompressKernel& k, unsigned char* shared, bool single,
                               int begin_0, int begin_1) {
  using L = Layout<kPanels>;
  uint64_t* full = reinterpret_cast<uint64_t*>(shared + L::kBarrierOffset);
  uint64_t* empty = full + L::kMostStages;
  unsigned char* tiles = shared + L::kTilesOffset;
  auto* notes = reinterpret_cast<TileNote*>(shared + L::kNotesOffset);
  const Worker first = find_worker(k.division, k.rows_in_all, 0);
  const int stages = L::stages(single, k.rows.same_for_all(first.block * kBlockSlots));
  TileFeed<kPanels> feed{PartWalk(k.bounds, first.first_row, first.last_row, begin_0), first.range, 0, stages};
  if (!single) {
    while (feed.step(map, tiles, notes, full, empty)) {
    }
    return;
  }
  const Worker second = find_worker(k.division, k.rows_in_all, 1);
  TileFeed<kPanels> other{PartWalk(k.bounds, second.first_row, second.last_row, begin_1), second.range, stages, stages};
  bool more = true;
  bool others = true;
  while (more || others) {
    more = more && feed.step(map, tiles, notes, full, empty);
    others = others && other.step(map, tiles, notes, full, empty);
  }
}

}  // namespace dba::ops::cuda::hopper::compressing

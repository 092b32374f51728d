#pragma once

#include "ops/cuda/hopper_compress.cuh"

/// The shared memory of restore's backward on Hopper, and the warp group that fills it: one thread brings tokens, dY
/// and M, three warps sum dY for the bias.
namespace dba::ops::cuda::hopper::restoring_backward {

constexpr int kTokens = 64;
constexpr int kStages = 2;
constexpr int kThreads = 384;
constexpr int kSummers = 3;  // warps that sum dY

struct RestoreBackwardKernel {
  int rows_in_all;
  int ranges;
  int range_rows;
  SequenceBounds bounds;
  ScoreRowsView rows;
  int slots;
  int d_p;
  bool linear;
  const int64_t* rng;
  uint32_t threshold;
  float keep_scale;
  int out_width;
  void* dscores;
  float* dm;
  float* dm_parts;         // (2 · ranges for each slot block, 64, d_out)
  float* drows_parts;      // (ranges, slot blocks · 64, d)
  float* dbias_parts;      // (ranges, slot blocks · 64) or null
  float* dout_bias_parts;  // (ranges · kSummers, d_out) or null
};

struct TileNote {
  int sequence;
  int first_token;
  int row;
  int tokens;  // 0: there are no more
  int begins;
  int ends;
  int place;  // −1: a whole sequence
};

template <int kPanels>
struct Layout {
  static constexpr int kTile = kPanels * kTokens * kPanelRowBytes;
  static constexpr int kStage = 2 * kTile;  // X, then dY
  static constexpr int kF = kStages * kStage;
  static constexpr int kM = kF + kPanels * kBlockSlots * kPanelRowBytes;
  static constexpr int kWeights = kM + kPanels * kBlockSlots * kPanelRowBytes;  // Ũ, 64 tokens × 64 slots
  static constexpr int kGradients = kWeights + kTokens * kPanelRowBytes;        // dS
  static constexpr int kExchange = kGradients + kTokens * kPanelRowBytes;       // U in float, 32 a thread
  static constexpr int kKept = kExchange + 32 * kGroupThreads * 4;              // the mask, 32 bits a thread
  static constexpr int kBias = kKept + kGroupThreads * 4;
  static constexpr int kNotes = kBias + kBlockSlots * 4;
  static constexpr int kBarriers = (kNotes + kStages * static_cast<int>(sizeof(TileNote)) + 7) / 8 * 8;
  static constexpr int kBytes = kBarriers + (2 * kStages + 5) * 8 + 1024;
};

template <class T, int kPanels>
struct Block {
  using L = Layout<kPanels>;
  const RestoreBackwardKernel& k;
  unsigned char* shared;

  __device__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(shared + L::kBarriers) + stage;
  }
  __device__ uint64_t* empty(int stage) const {
    return full(kStages + stage);
  }
  __device__ uint64_t* m_full() const {
    return full(2 * kStages);
  }
  __device__ uint64_t* m_empty() const {
    return full(2 * kStages + 1);
  }
  /// Between the two groups: a tile's last rows are cleared; the first group's weights are there; they were taken.
  __device__ uint64_t* cleared() const {
    return full(2 * kStages + 2);
  }
  __device__ uint64_t* weights_ready() const {
    return full(2 * kStages + 3);
  }
  __device__ uint64_t* weights_taken() const {
    return full(2 * kStages + 4);
  }
  __device__ TileNote& note(int stage) const {
    return reinterpret_cast<TileNote*>(shared + L::kNotes)[stage];
  }
  __device__ unsigned char* x(int stage) const {
    return shared + stage * L::kStage;
  }
  __device__ unsigned char* dy(int stage) const {
    return x(stage) + L::kTile;
  }
  __device__ int range() const {
    return static_cast<int>(blockIdx.x);
  }
  __device__ int slot_block() const {
    return static_cast<int>(blockIdx.y);
  }
  __device__ int first_row() const {
    return min(k.rows_in_all, range() * k.range_rows);
  }
  __device__ int last_row() const {
    return min(k.rows_in_all, first_row() + k.range_rows);
  }
  __device__ bool sums_dy() const {
    return slot_block() == 0 && k.dout_bias_parts != nullptr;
  }

  __device__ void feed(const CUtensorMap& x_map, const CUtensorMap& dy_map, const CUtensorMap& m_map,
                       int first_sequence) {
    PartWalk walk(k.bounds, first_row(), last_row(), first_sequence);
    Part part;
    RingPlace<kStages> ring;
    uint32_t m_parity = 1;
    while (walk.next(part)) {
      barrier_wait(m_empty(), m_parity);
      m_parity ^= 1;
      barrier_expect(m_full(), kPanels * kBlockSlots * kPanelRowBytes);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        copy_box(shared + L::kM + panel * kBlockSlots * kPanelRowBytes, &m_map, panel * kPanelColumns,
                 slot_block() * kBlockSlots, part.sequence, m_full());
      }
      for (int done = 0; done < part.tokens; done += kTokens) {
        const int left = part.tokens - done;
        barrier_wait(empty(ring.stage), ring.parity ^ 1);
        note(ring.stage) = {part.sequence,
                            part.first_token() + done,
                            part.first + done,
                            min(left, kTokens),
                            done == 0,
                            left <= kTokens,
                            part.whole() ? -1 : part_place(range(), part)};
        barrier_expect(full(ring.stage), L::kStage);
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          const int offset = panel * kTokens * kPanelRowBytes;
          copy_box(x(ring.stage) + offset, &x_map, panel * kPanelColumns, part.first + done, full(ring.stage));
          copy_box(dy(ring.stage) + offset, &dy_map, panel * kPanelColumns, part.first + done, full(ring.stage));
        }
        ring.advance();
      }
    }
    barrier_wait(empty(ring.stage), ring.parity ^ 1);
    note(ring.stage).tokens = 0;
    barrier_arrive(full(ring.stage));
  }

  /// Σ dY over the range's tokens: a lane has 8 columns, a warp every third row.
  __device__ void sum_dy(int summer, int lane) {
    float sums[8] = {};
    RingPlace<kStages> ring;
    const bool has_columns = lane * 8 < kPanels * kPanelColumns;
    while (true) {
      barrier_wait(full(ring.stage), ring.parity);
      const int tokens = note(ring.stage).tokens;
      if (tokens == 0) {
        break;
      }
      const unsigned char* panel = dy(ring.stage) + (lane / 8) * kTokens * kPanelRowBytes;
      for (int row = summer; has_columns && row < tokens; row += kSummers) {
        const uint4 chunk = *reinterpret_cast<const uint4*>(panel + swizzled(row, lane % 8));
        const uint32_t pairs[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = unpack<T>(pairs[i]);
          sums[2 * i] += pair.x;
          sums[2 * i + 1] += pair.y;
        }
      }
      barrier_arrive_as_warp(empty(ring.stage));
      ring.advance();
    }
    if (lane * 8 < k.out_width) {
      float* target = k.dout_bias_parts + static_cast<int64_t>(range() * kSummers + summer) * k.out_width + lane * 8;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        target[i] = sums[i];
      }
    }
  }
};

}  // namespace dba::ops::cuda::hopper::restoring_backward

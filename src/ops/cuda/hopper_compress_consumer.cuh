#pragma once

#include "ops/cuda/hopper_compress_weights.cuh"

/// The warp groups of compress's kernel on Hopper that turn tokens into summaries: scores, weights relative to the
/// largest score so far, and the weights' product with the tokens.
namespace dba::ops::cuda::hopper::compressing {

/// A warp group's 64 slots against the tiles that the producer sends.
template <class T, int kPanels, bool kDropout>
class Consumer {
  using L = Layout<kPanels>;
  static constexpr int kWidth = kPanels * kPanelColumns;

 public:
  __device__ Consumer(const CompressKernel& kernel, unsigned char* shared_memory, bool alone, int which)
      : k(kernel), shared(shared_memory), single(alone), consumer(which) {
    const Worker worker = find_worker(k.division, k.rows_in_all, consumer);
    slots.block = worker.block;
    slots.slot = slots.block * kBlockSlots + 16 * (group_thread() / 32) + warp_lane() / 4;
    rows_stay = k.rows.same_for_all(slots.block * kBlockSlots);
    at = first_stage();
    if constexpr (kDropout) {
      slots.key = {static_cast<uint64_t>(k.rng[0]), static_cast<uint64_t>(k.rng[1]), /*site=*/0, k.threshold};
    }
  }

  __device__ void run() {
    int previous = 0;
    if (rows_stay && single) {
      load_together();
    } else if (rows_stay) {
      load(0);
    }
    bool first_sums = true;
    while (true) {
      barrier_wait(full() + at, parity);
      const TileNote& note = notes()[at];
      if (note.tokens == 0) {
        return;
      }
      if (note.tokens < kTokens) {
        clear_rest(note.tokens);
      }
      float factor[2];
      if (note.begins) {
        if (!rows_stay) {
          load(note.sequence);
        }
        slots.begin();
        products_begin();
        issue_scores();
        products_wait<0>();
        pin(scores);
        slots.weigh(scores, k, note, factor);
        first_sums = true;
      } else {
        // The scores of this tile go first: while the sums of the one before are under way, they become weights.
        products_begin();
        issue_scores();
        issue_sums(previous, first_sums);
        first_sums = false;
        products_wait<1>();
        pin(scores);
        const bool rescale = slots.weigh(scores, k, note, factor);
        products_wait<0>();
        pin(sums);
        release(previous);
        if (rescale) {
#pragma unroll
          for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              sums[4 * j + e] *= factor[e / 2];
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kTokens / 4; ++i) {
        weights[i] = pack<T>(scores[2 * i], scores[2 * i + 1]);
      }
      if (note.ends) {
        products_begin();
        issue_sums(at, first_sums);
        products_wait<0>();
        pin(sums);
        finish(note);
        release(at);
      }
      previous = at;
      if (++at == first_stage() + L::stages(single, rows_stay)) {
        at = first_stage();
        parity ^= 1;
      }
    }
  }

 private:
  __device__ int first_stage() const {
    return single ? consumer * L::stages(single, rows_stay) : 0;
  }
  __device__ uint64_t* full() const {
    return reinterpret_cast<uint64_t*>(shared + L::kBarrierOffset);
  }
  __device__ const TileNote* notes() const {
    return reinterpret_cast<const TileNote*>(shared + L::kNotesOffset);
  }
  __device__ unsigned char* rows() const {
    return shared + (consumer == 0 || (single && rows_stay) ? 0 : L::kSecondRowsOffset);
  }
  __device__ unsigned char* tile(int stage) const {
    return shared + L::kTilesOffset + stage * L::kTile;
  }

  template <int kThreads>
  __device__ void load_rows_of(int sequence, int this_thread) {
    const int first_slot = slots.block * kBlockSlots;
    load_rows<T, kPanels, kThreads>(rows(), k.rows.width, this_thread, [&](int i) {
      return first_slot + i < k.rows.rows ? k.rows.row<T>(sequence, first_slot + i) : static_cast<const T*>(nullptr);
    });
    publish_shared();
  }
  __device__ void load(int sequence) {
    named_barrier(1 + consumer, kGroupThreads);  // everybody's products with the rows before are done
    load_rows_of<kGroupThreads>(sequence, group_thread());
    named_barrier(1 + consumer, kGroupThreads);
  }
  /// Rows that both consumers read.
  __device__ void load_together() {
    load_rows_of<2 * kGroupThreads>(0, consumer * kGroupThreads + group_thread());
    named_barrier(3, 2 * kGroupThreads);
  }

  /// Tokens behind the part belong to somebody else, and 0 · NaN is not 0.
  __device__ void clear_rest(int tokens) {
    if (single) {
      clear_rows<kPanels, kTokens, kGroupThreads>(tile(at), tokens, group_thread());
      publish_shared();
      named_barrier(1 + consumer, kGroupThreads);
    } else {
      clear_rows<kPanels, kTokens, 2 * kGroupThreads>(tile(at), tokens, consumer * kGroupThreads + group_thread());
      publish_shared();
      named_barrier(3, 2 * kGroupThreads);
    }
  }

  __device__ void issue_scores() {
    const uint64_t of_rows = descriptor_along_k(shared_address(rows()));
    const uint64_t of_tile = descriptor_along_k(shared_address(tile(at)));
#pragma unroll
    for (int step = 0; step < 4 * kPanels; ++step) {
      multiply_shared<T, kTokens, kAlongK, kAlongK>(
          scores, of_rows + ((step / 4) * L::kRowsPanel + (step % 4) * 32) / 16,
          of_tile + ((step / 4) * L::kTilePanel + (step % 4) * 32) / 16, step > 0);
    }
    products_commit();
  }

  __device__ void issue_sums(int stage, bool first) {
    const uint64_t of_tile = descriptor_along_rows(shared_address(tile(stage)), L::kTilePanel);
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      const uint32_t fragment[4] = {weights[4 * step], weights[4 * step + 1], weights[4 * step + 2],
                                    weights[4 * step + 3]};
      multiply_register<T, kWidth, kAlongRows>(sums, fragment, of_tile + step * 16 * kPanelRowBytes / 16,
                                               step > 0 || !first);
    }
    products_commit();
  }

  __device__ void release(int stage) {
    barrier_arrive_as_warp(full() + L::kMostStages + stage);
  }

  /// Writes a whole sequence's summary, or a part for the merge.
  __device__ void finish(const TileNote& note) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float total = quad_sum(slots.sum[i]);
      float total_kept = total;
      if constexpr (kDropout) {
        total_kept = quad_sum(slots.kept[i]);
      }
      const int own = slots.slot + 8 * i;
      if (own >= k.rows.rows) {
        continue;
      }
      const bool whole = note.place < 0;
      const bool writes_scalars = (warp_lane() & 3) == 0;
      float* target;
      float multiplier = 1.0f;
      if (whole) {
        const int64_t row = static_cast<int64_t>(note.sequence) * k.rows.rows + own;
        const float divisor = slots.linear(k, i) ? 1.0f : total;
        multiplier = k.keep_scale / divisor;
        target = k.c + row * k.rows.width;
        if (writes_scalars) {
          k.r[row] = total_kept / divisor * k.keep_scale;
          k.lse[row] = slots.linear(k, i) ? logf(static_cast<float>(note.length))
                                          : slots.reference[i] + log2f(total) * kLn2 + k.rows.bias(note.sequence, own);
        }
      } else {
        const int64_t row =
            static_cast<int64_t>(k.division.first_place(slots.block) + note.place) * kBlockSlots + own % kBlockSlots;
        target = k.parts.sums + row * k.rows.width;
        if (writes_scalars) {
          k.parts.reference[row] = slots.linear(k, i) ? 0.0f : slots.reference[i];
          k.parts.total[row] = total;
          k.parts.kept[row] = total_kept;
        }
      }
#pragma unroll
      for (int j = 0; j < kWidth / 8; ++j) {
        const int column = 8 * j + 2 * (warp_lane() & 3);
        if (column < k.rows.width) {
          *reinterpret_cast<float2*>(target + column) =
              make_float2(sums[4 * j + 2 * i] * multiplier, sums[4 * j + 2 * i + 1] * multiplier);
        }
      }
    }
  }

  const CompressKernel& k;
  unsigned char* shared;
  const bool single;
  const int consumer;
  bool rows_stay;  // the same for every sequence
  SlotWeights<kDropout> slots;
  int at;  // the stage
  uint32_t parity = 0;
  float sums[kWidth / 2];
  float scores[kTokens / 2];
  uint32_t weights[kTokens / 4];
};

}  // namespace dba::ops::cuda::hopper::compressing

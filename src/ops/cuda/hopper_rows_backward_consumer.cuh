#pragma once

#include "ops/cuda/hopper_rows_backward_tiles.cuh"

/// The warp groups that turn tiles of tokens into dA: scores and dC Xᵀ, the gradient of the scores, and its product
/// with the tokens.
namespace dba::ops::cuda::hopper::rows_backward {

/// Named barriers: the first group's, the second's, and that of both.
enum Meeting { kOneGroup = 1, kBothGroups = 3 };

/// A warp group's 64 slots against the tiles that the producer sends. In a single block's thread block both groups have
/// the same slots, and take turns with the tiles.
template <class T, int kPanels, bool kDropout>
class Consumer {
  using L = Layout<kPanels>;
  static constexpr int kWidth = kPanels * kPanelColumns;

 public:
  __device__ Consumer(const Block<kPanels>& thread_block, int which)
      : b(thread_block), consumer(which), place(find_place(b.k.division, b.k.s.rows_in_all)) {
    block = place.first_block + (place.single ? 0 : consumer);
    slot = block * kBlockSlots + 16 * (group_thread() / 32) + (group_thread() & 31) / 4;
    if constexpr (kDropout) {
      key = {static_cast<uint64_t>(b.k.s.rng[0]), static_cast<uint64_t>(b.k.s.rng[1]), /*site=*/0, b.k.s.threshold};
    }
  }

  __device__ void run() {
    const bool for_all = block * kBlockSlots >= b.k.each_rows;  // one sum over all sequences
    bool rows_loaded = false;
    bool fresh = true;
    bool own_turn = place.single ? consumer == 0 : true;
    while (true) {
      barrier_wait(b.full(ring.stage), ring.parity);
      const TileNote note = b.note(ring.stage);
      if (note.tokens == 0) {
        break;
      }
      if (note.begins) {
        load(note.sequence, !rows_loaded || b.k.s.prepared.rows_differ);
        rows_loaded = true;
        fresh = fresh || !for_all;
      }
      if (own_turn) {
        if (note.tokens < kTokens) {
          clear_rest(note.tokens);
        }
        products_begin();
        multiply(scores, rows());
        products_commit();
        multiply(gradients, rows() + L::kRows);
        products_commit();
        products_wait<1>();
        pin(scores);
        exponentiate();  // while the tensor cores make dC Xᵀ
        products_wait<0>();
        pin(gradients);
        differentiate(note);
        products_begin();
        accumulate(fresh);
        products_commit();
        products_wait<0>();
        pin(sums);
        fresh = false;
      }
      barrier_arrive_as_warp(b.empty(ring.stage));
      if (note.ends && !for_all) {
        clear_if(fresh);
        if (place.single && note.whole) {
          add_other_group();
        }
        const bool direct = note.whole;
        const int range = place.single ? 2 * place.range + consumer : place.range;
        const int at = b.k.division.first_place(block) + 2 * range + (note.began ? 0 : 1);
        const bool written_by_the_first = direct && place.single && consumer == 1;
        if (!written_by_the_first) {
          write(direct ? b.k.deach +
                             (static_cast<int64_t>(note.sequence) * b.k.each_rows + block * kBlockSlots) * b.k.s.width
                       : b.k.parts + static_cast<int64_t>(at) * kBlockSlots * b.k.s.width,
                direct ? b.k.each_rows - block * kBlockSlots : kBlockSlots);
        }
      }
      own_turn = place.single ? !own_turn : true;
      ring.advance();
    }
    if (for_all) {
      clear_if(fresh);
      const int range = place.single ? 2 * place.range + consumer : place.range;
      const int row = block * kBlockSlots - b.k.each_rows;
      write(b.k.shared_parts.of(range) + static_cast<int64_t>(row) * b.k.s.width, kBlockSlots);
    }
  }

 private:
  /// A pair's groups have rows of their own; a single block's share theirs.
  __device__ unsigned char* rows() const {
    return b.shared + L::kRowsOffset + (place.single ? 0 : consumer * L::kGroupRows);
  }
  __device__ void wait_for_group() const {
    if (place.single) {
      named_barrier(kBothGroups, 2 * kGroupThreads);
    } else {
      named_barrier(kOneGroup + consumer, kGroupThreads);
    }
  }

  /// dC of the block's slots in a sequence, their score rows where those before were others, and their notes.
  __device__ void load(int sequence, bool score_rows) {
    const auto& prepared = b.k.s.prepared;
    const int64_t first = static_cast<int64_t>(block) * kBlockSlots;
    const int64_t of_sequence = static_cast<int64_t>(sequence) * prepared.padded + first;
    const T* dc = static_cast<const T*>(prepared.dc) + of_sequence * b.k.s.width;
    const T* source = static_cast<const T*>(prepared.rows) + (prepared.rows_differ ? of_sequence : first) * b.k.s.width;
    wait_for_group();  // everybody's products with the rows before are done
    if (place.single) {
      const int both = consumer * kGroupThreads + group_thread();
      load_rows<T, kPanels, 2 * kGroupThreads>(rows() + L::kRows, b.k.s.width, both,
                                               [&](int i) { return dc + static_cast<int64_t>(i) * b.k.s.width; });
      if (score_rows) {
        load_rows<T, kPanels, 2 * kGroupThreads>(rows(), b.k.s.width, both,
                                                 [&](int i) { return source + static_cast<int64_t>(i) * b.k.s.width; });
      }
    } else {
      load_rows<T, kPanels, kGroupThreads>(rows() + L::kRows, b.k.s.width, group_thread(),
                                           [&](int i) { return dc + static_cast<int64_t>(i) * b.k.s.width; });
      if (score_rows) {
        load_rows<T, kPanels, kGroupThreads>(rows(), b.k.s.width, group_thread(),
                                             [&](int i) { return source + static_cast<int64_t>(i) * b.k.s.width; });
      }
    }
    publish_shared();
    wait_for_group();
    const BlockNotes& notes = prepared.notes[of_sequence / kBlockSlots];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = slot % kBlockSlots + 8 * i;
      shift[i] = notes.shift[row];
      reduction[i] = notes.reduction[row];
      dr[i] = notes.dr[row];
    }
  }

  /// Tokens behind the part belong to somebody else, and 0 · NaN is not 0.
  __device__ void clear_rest(int tokens) {
    if (place.single) {
      clear_rows<kPanels, kTokens, kGroupThreads>(b.tile(ring.stage), tokens, group_thread());
      publish_shared();
      named_barrier(kOneGroup + consumer, kGroupThreads);
    } else {
      clear_rows<kPanels, kTokens, 2 * kGroupThreads>(b.tile(ring.stage), tokens,
                                                      consumer * kGroupThreads + group_thread());
      publish_shared();
      named_barrier(kBothGroups, 2 * kGroupThreads);
    }
  }

  /// product = rows (64 slots) · X (64 tokens)ᵀ.
  __device__ void multiply(float (&product)[32], unsigned char* by) {
    const uint64_t of_rows = descriptor_along_k(shared_address(by));
    const uint64_t of_tile = descriptor_along_k(shared_address(b.tile(ring.stage)));
#pragma unroll
    for (int step = 0; step < 4 * kPanels; ++step) {
      const int offset = ((step / 4) * L::kRowsPanel + (step % 4) * 32) / 16;
      multiply_shared<T, kTokens, kAlongK, kAlongK>(product, of_rows + offset, of_tile + offset, step > 0);
    }
  }

  /// sums += gradient of the scores (64 slots × 64 tokens) · X (64 tokens).
  __device__ void accumulate(bool first) {
    const uint64_t of_tile = descriptor_along_rows(shared_address(b.tile(ring.stage)), kTokens * kPanelRowBytes);
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      const uint32_t fragment[4] = {score_gradients[4 * step], score_gradients[4 * step + 1],
                                    score_gradients[4 * step + 2], score_gradients[4 * step + 3]};
      multiply_register<T, kWidth, kAlongRows>(sums, fragment, of_tile + step * 16 * kPanelRowBytes / 16,
                                               step > 0 || !first);
    }
  }

  /// Scores → weights, where the slot has a softmax.
  __device__ void exponentiate() {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      scores[i] = exp2_fast(fmaf(scores[i], kLog2E, shift[i / 2 % 2]));
    }
  }

  /// Weights and dC Xᵀ → the rounded gradient of the scores.
  __device__ void differentiate(const TileNote& note) {
    if (note.tokens < kTokens || (block + 1) * kBlockSlots > b.k.s.softmax) {
      differentiate_tile<true>(note);
    } else {
      differentiate_tile<false>(note);
    }
  }

  /// kSpecial: some tokens are missing or some slots are linear.
  template <bool kSpecial>
  __device__ void differentiate_tile(const TileNote& note) {
    const int own = group_thread();
    const float inverse_length = kSpecial ? 1.0f / static_cast<float>(note.length) : 0.0f;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      uint32_t bits = 0xF;
      if constexpr (kDropout) {
        bits = kept_slots_by_tokens(key, static_cast<uint32_t>(note.sequence), static_cast<uint32_t>(slot),
                                    static_cast<uint32_t>(note.first_token + 8 * j));
      }
      float gradient[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = e / 2;
        const float keep = !kDropout ? 1.0f : (bits >> e) & 1 ? b.k.s.keep_scale : 0.0f;
        const float dw = keep * (gradients[4 * j + e] + dr[i]);
        float ds = scores[4 * j + e] * (dw - reduction[i]);
        if constexpr (kSpecial) {
          ds = slot + 8 * i < b.k.s.softmax ? ds : dw * inverse_length;
          ds = 8 * j + 2 * (own & 3) + e % 2 < note.tokens ? ds : 0.0f;
        }
        gradient[e] = ds;
      }
      score_gradients[2 * j] = pack<T>(gradient[0], gradient[1]);
      score_gradients[2 * j + 1] = pack<T>(gradient[2], gradient[3]);
    }
  }

  /// Sums that nothing was added to are 0.
  __device__ void clear_if(bool fresh) {
    if (fresh) {
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        sums[i] = 0.0f;
      }
    }
  }

  /// The first group's sums become those of both. The second group's place for score rows is free in a single block's
  /// thread block, and just as large as the sums.
  __device__ void add_other_group() {
    auto* exchange = reinterpret_cast<float*>(b.shared + L::kRowsOffset + L::kGroupRows) + group_thread();
    if (consumer == 1) {
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        exchange[i * kGroupThreads] = sums[i];
      }
    }
    named_barrier(kBothGroups, 2 * kGroupThreads);
    if (consumer == 0) {
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        sums[i] += exchange[i * kGroupThreads];
      }
    }
  }

  /// 64 slots × d sums; the first `slots` rows of the target exist.
  __device__ void write(float* target, int slots) const {
    const int own = group_thread();
    const int row = own / 32 * 16 + own % 32 / 4;
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      const int column = 8 * j + 2 * (own & 3);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (column < b.k.s.width && row + 8 * i < slots) {
          *reinterpret_cast<float2*>(target + static_cast<int64_t>(row + 8 * i) * b.k.s.width + column) =
              make_float2(sums[4 * j + 2 * i], sums[4 * j + 2 * i + 1]);
        }
      }
    }
  }

  const Block<kPanels>& b;
  const int consumer;
  const Place place;
  int block;  // of slots
  int slot;   // of the thread's first row; the second is 8 further on
  MaskKey key{};
  RingPlace<kStages> ring;
  float shift[2], reduction[2], dr[2];  // the slots' notes
  float scores[32];                     // and then weights
  float gradients[32];                  // dC Xᵀ
  uint32_t score_gradients[16];
  float sums[kWidth / 2];  // dA
};

}  // namespace dba::ops::cuda::hopper::rows_backward

#pragma once

#include "ops/cuda/hopper_rows.cuh"
#include "ops/cuda/hopper_tokens_backward_tiles.cuh"

/// The warp groups that turn blocks of rows into dX: scores and X dCᵀ, weights and the gradient of the scores, and
/// their products with dC and the score rows.
namespace dba::ops::cuda::hopper::tokens_backward {

/// A warp group's 64 tokens against the blocks of rows that the producer sends.
template <class T, int kPanels, bool kDropout>
class Consumer {
  using L = Layout<kPanels>;
  static constexpr int kWidth = kPanels * kPanelColumns;

 public:
  __device__ Consumer(const Block<kPanels>& block, int which) : b(block), consumer(which) {
    if constexpr (kDropout) {
      key = {static_cast<uint64_t>(b.k.s.rng[0]), static_cast<uint64_t>(b.k.s.rng[1]), /*site=*/0, b.k.s.threshold};
    }
  }

  __device__ void run() {
    uint32_t x_parity = 0;
    while (true) {
      barrier_wait(b.x_full(), x_parity);
      x_parity ^= 1;
      const TileNote note = b.note();
      if (note.tokens == 0) {
        return;
      }
      for (int block = 0; block < b.k.blocks; ++block) {
        if ((block + 1) * kBlockSlots > b.k.s.softmax && b.k.s.rows > b.k.s.softmax) {
          add_block<true>(note, block);
        } else {
          add_block<false>(note, block);
        }
      }
      for (int block = 0; block < b.k.restore_blocks; ++block) {
        const int rows = take();
        const int dscores = take();
        const uint64_t of_scores =
            descriptor_along_k(shared_address(b.entry(dscores) + consumer * kTokens * kPanelRowBytes));
        const uint64_t of_rows = descriptor_along_rows(shared_address(b.entry(rows)), kBlockSlots * kPanelRowBytes);
        products_begin();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          multiply_shared<T, kWidth, kAlongK, kAlongRows>(sums, of_scores + step * 32 / 16,
                                                          of_rows + step * 16 * kPanelRowBytes / 16, 1);
        }
        products_commit();
        products_wait<0>();
        pin(sums);
        release(b.empty(rows));
        release(b.empty(dscores));
      }
      write_rows<T, kWidth>(sums,
                            static_cast<T*>(b.k.dx) + static_cast<int64_t>(note.row + consumer * kTokens) * b.k.s.width,
                            b.k.s.width, note.tokens - consumer * kTokens, group_thread());
    }
  }

 private:
  /// sums += weights · dC + gradient of the scores · score rows. The tensor cores always have the next product: X dCᵀ
  /// while scores become weights, the product of the weights while the gradient of the scores is made. kAnyLinear: the
  /// block has slots without a softmax.
  template <bool kAnyLinear>
  __device__ void add_block(const TileNote& note, int block) {
    const int rows = take();
    products_begin();
    multiply(scores, rows);
    products_commit();
    const int dc = take();
    multiply(gradients, dc);
    products_commit();
    const BlockNotes& notes = b.notes(note_place);
    note_place = (note_place + 1) % kNotePlaces;
    products_wait<1>();
    pin(scores);
    weigh<kAnyLinear>(note, block, notes);
    products_begin();
    accumulate(weights, dc, block == 0);
    products_commit();
    products_wait<1>();
    pin(gradients);
    if (block + 1 == b.k.blocks) {
      release(b.x_empty());
    }
    differentiate<kAnyLinear>(note, block, notes);
    products_begin();
    accumulate(score_gradients, rows, false);
    products_commit();
    products_wait<0>();
    pin(sums);
    release(b.empty(rows));
    release(b.empty(dc));
  }

  /// Waits for the next entry.
  __device__ int take() {
    const int index = ring.stage;
    barrier_wait(b.full(index), ring.parity);
    ring.advance();
    return index;
  }
  __device__ void release(uint64_t* barrier) const {
    barrier_arrive_as_warp(barrier);
  }
  /// product = X (64 tokens) · entry (64 slots)ᵀ.
  __device__ void multiply(float (&product)[32], int index) {
    const uint64_t of_tile = descriptor_along_k(shared_address(b.shared + consumer * L::kHalf));
    const uint64_t of_rows = descriptor_along_k(shared_address(b.entry(index)));
#pragma unroll
    for (int step = 0; step < 4 * kPanels; ++step) {
      const int offset = ((step / 4) * kTokens * kPanelRowBytes + (step % 4) * 32) / 16;
      multiply_shared<T, 64, kAlongK, kAlongK>(product, of_tile + offset, of_rows + offset, step > 0);
    }
  }
  /// sums += fragment (64 tokens × 64 slots) · entry (64 slots).
  __device__ void accumulate(const uint32_t (&fragments)[16], int index, bool first) {
    const uint64_t of_rows = descriptor_along_rows(shared_address(b.entry(index)), kBlockSlots * kPanelRowBytes);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t fragment[4] = {fragments[4 * step], fragments[4 * step + 1], fragments[4 * step + 2],
                                    fragments[4 * step + 3]};
      multiply_register<T, kWidth, kAlongRows>(sums, fragment, of_rows + step * 16 * kPanelRowBytes / 16,
                                               step > 0 || !first);
    }
  }

  /// The thread's two of eight neighbouring columns.
  static __device__ float2 two_of(const float (&numbers)[kBlockSlots], int j) {
    return *reinterpret_cast<const float2*>(numbers + 8 * j + 2 * (group_thread() & 3));
  }
  __device__ bool keeps(int j, int e) const {
    return !kDropout || (kept >> (4 * j + e)) & 1;
  }

  /// Scores → weights, and these behind dropout, rounded, as the left side of a product.
  template <bool kAnyLinear>
  __device__ void weigh(const TileNote& note, int block, const BlockNotes& notes) {
    const int first_slot = block * kBlockSlots + 2 * (group_thread() & 3);
    const float inverse_length = kAnyLinear ? 1.0f / static_cast<float>(note.length) : 0.0f;
    if constexpr (kDropout) {
      kept = 0;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 shift = two_of(notes.shift, j);
      if constexpr (kDropout) {
        const auto first_token =
            static_cast<uint32_t>(note.first_token + consumer * kTokens + group_thread() / 32 * 16);
        kept |= kept_tokens_by_slots(key, static_cast<uint32_t>(note.sequence), first_token,
                                     static_cast<uint32_t>(first_slot + 8 * j))
                << (4 * j);
      }
      float weight[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& score = scores[4 * j + e];
        const float of_slot = e % 2 == 0 ? shift.x : shift.y;
        const float linear = (score + of_slot) * inverse_length;
        score = exp2_fast(fmaf(score, kLog2E, of_slot));
        if constexpr (kAnyLinear) {
          const int slot = first_slot + 8 * j + e % 2;
          score = slot < b.k.s.softmax ? score : slot < b.k.s.rows ? linear : 0.0f;
        }
        weight[e] = !kDropout ? score : keeps(j, e) ? score * b.k.s.keep_scale : 0.0f;
      }
      weights[2 * j] = pack<T>(weight[0], weight[1]);
      weights[2 * j + 1] = pack<T>(weight[2], weight[3]);
    }
  }

  /// Weights and X dCᵀ → the rounded gradient of the scores.
  template <bool kAnyLinear>
  __device__ void differentiate(const TileNote& note, int block, const BlockNotes& notes) {
    const int first_slot = block * kBlockSlots + 2 * (group_thread() & 3);
    const float inverse_length = kAnyLinear ? 1.0f / static_cast<float>(note.length) : 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 reduction = two_of(notes.reduction, j), dr = two_of(notes.dr, j);
      float gradient[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float dw = gradients[4 * j + e] + (e % 2 == 0 ? dr.x : dr.y);
        dw = !kDropout ? dw : keeps(j, e) ? dw * b.k.s.keep_scale : 0.0f;
        gradient[e] = scores[4 * j + e] * (dw - (e % 2 == 0 ? reduction.x : reduction.y));
        if constexpr (kAnyLinear) {
          const int slot = first_slot + 8 * j + e % 2;
          gradient[e] = slot < b.k.s.softmax ? gradient[e] : slot < b.k.s.rows ? dw * inverse_length : 0.0f;
        }
      }
      score_gradients[2 * j] = pack<T>(gradient[0], gradient[1]);
      score_gradients[2 * j + 1] = pack<T>(gradient[2], gradient[3]);
    }
  }

  const Block<kPanels>& b;
  const int consumer;
  MaskKey key{};
  RingPlace<kEntries> ring;
  int note_place = 0;
  uint32_t kept = 0;     // a bit for each weight, where there is dropout
  float scores[32];      // and then weights
  float gradients[32];   // X dCᵀ
  uint32_t weights[16];  // behind dropout, rounded
  uint32_t score_gradients[16];
  float sums[kWidth / 2];  // dX
};

}  // namespace dba::ops::cuda::hopper::tokens_backward

#pragma once

#include "ops/cuda/hopper_rows.cuh"
#include "ops/cuda/hopper_tokens_backward_tiles.cuh"

/// The warp groups that turn blocks of rows into dX: scores and X dCᵀ, weights and the gradient of the scores, and
/// their products with dC and the score rows.
namespace dba::ops::cuda::hopper::tokens_backward {

/// Notes of a block's rows, where a thread has two columns of each eight: those of the first kEarly eights are on their
/// way while the products are, the others are loaded where they are wanted. `notes`: the thread's first.
template <int kEarly>
struct EarlyNotes {
  float4 ahead[2 * kEarly];

  __device__ void load(const float4* notes) {
#pragma unroll
    for (int i = 0; i < 2 * kEarly; ++i) {
      asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(ahead[i].x), "=f"(ahead[i].y), "=f"(ahead[i].z), "=f"(ahead[i].w)
                   : "l"(notes + i / 2 * 8 + i % 2));
    }
  }
  __device__ float4 of(const float4* notes, int j, int c) const {
    return j < kEarly ? ahead[2 * j + c] : __ldg(notes + 8 * j + c);
  }
};

template <>
struct EarlyNotes<0> {
  __device__ void load(const float4*) {}
  __device__ float4 of(const float4* notes, int j, int c) const {
    return __ldg(notes + 8 * j + c);
  }
};

/// A warp group's 64 tokens against the blocks of rows that the producer sends.
template <class T, int kPanels, bool kDropout>
class Consumer {
  using L = Layout<kPanels>;
  static constexpr int kWidth = kPanels * kPanelColumns;
  static constexpr int kEarly = kDropout ? 0 : 2;  // more would spill

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
        const int rows = take();
        const int dc = take();
        products_begin();
        multiply(scores, rows);
        multiply(gradients, dc);
        products_commit();
        EarlyNotes<kEarly> early;
        early.load(notes_of(note, block));
        products_wait<0>();
        pin(scores);
        pin(gradients);
        if (block + 1 == b.k.blocks) {
          release(b.x_empty());
        }
        weigh(note, block, early);
        products_begin();
        accumulate(weights, dc, block == 0);
        accumulate(score_gradients, rows, false);
        products_commit();
        products_wait<0>();
        pin(sums);
        release(b.empty(rows));
        release(b.empty(dc));
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

  /// Where the thread's two columns of each eight lie among the notes of the block's rows.
  __device__ const float4* notes_of(const TileNote& note, int block) const {
    return reinterpret_cast<const float4*>(b.k.s.prepared.notes +
                                           static_cast<int64_t>(note.sequence) * b.k.s.prepared.padded +
                                           block * kBlockSlots + 2 * (group_thread() & 3));
  }

  __device__ void weigh(const TileNote& note, int block, const EarlyNotes<kEarly>& early) {
    if ((block + 1) * kBlockSlots > b.k.s.softmax && b.k.s.rows > b.k.s.softmax) {
      weigh_block<true>(note, block, early);
    } else {
      weigh_block<false>(note, block, early);
    }
  }

  /// Scores and X dCᵀ → rounded weights and rounded gradients of the scores.
  template <bool kAnyLinear>
  __device__ void weigh_block(const TileNote& note, int block, const EarlyNotes<kEarly>& early) {
    const int own = group_thread();
    const int first_slot = block * kBlockSlots + 2 * (own & 3);
    const float4* notes = notes_of(note, block);
    const float inverse_length = kAnyLinear ? 1.0f / static_cast<float>(note.length) : 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float4 of_column[2] = {early.of(notes, j, 0), early.of(notes, j, 1)};
      uint32_t bits = 0xF;
      if constexpr (kDropout) {
        bits = kept_tokens_by_slots(key, static_cast<uint32_t>(note.sequence),
                                    static_cast<uint32_t>(note.first_token + consumer * kTokens + own / 32 * 16),
                                    static_cast<uint32_t>(first_slot + 8 * j));
      }
      float weight[4], gradient[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float4& row = of_column[e % 2];  // shift, reduction, dr
        const float keep = !kDropout ? 1.0f : (bits >> e) & 1 ? b.k.s.keep_scale : 0.0f;
        const float score = scores[4 * j + e];
        float w = exp2_fast(fmaf(score, kLog2E, row.x));
        const float dw = keep * (gradients[4 * j + e] + row.z);
        float ds = w * (dw - row.y);
        if constexpr (kAnyLinear) {
          if (first_slot + 8 * j + e % 2 >= b.k.s.softmax) {
            w = (score + row.x) * inverse_length;
            ds = dw * inverse_length;
            if (first_slot + 8 * j + e % 2 >= b.k.s.rows) {
              w = 0.0f;
              ds = 0.0f;
            }
          }
        }
        weight[e] = w * keep;
        gradient[e] = ds;
      }
      weights[2 * j] = pack<T>(weight[0], weight[1]);
      weights[2 * j + 1] = pack<T>(weight[2], weight[3]);
      score_gradients[2 * j] = pack<T>(gradient[0], gradient[1]);
      score_gradients[2 * j + 1] = pack<T>(gradient[2], gradient[3]);
    }
  }

  const Block<kPanels>& b;
  const int consumer;
  MaskKey key{};
  RingPlace<kEntries> ring;
  float scores[32];
  float gradients[32];  // X dCᵀ
  uint32_t weights[16];
  uint32_t score_gradients[16];
  float sums[kWidth / 2];  // dX
};

}  // namespace dba::ops::cuda::hopper::tokens_backward

#pragma once

#include "ops/cuda/hopper_restore_backward_tiles.cuh"
#include "ops/cuda/slot_softmax.cuh"

/// The two consuming warp groups of restore's backward on Hopper: one has the weights and dM, the other the scores'
/// gradients and dF.
namespace dba::ops::cuda::hopper::restoring_backward {

constexpr uint32_t kSite = 2;
enum NamedBarrier { kFirstGroup = 1, kSecondGroup = 2 };

/// What both consumers do: wait for a tile, clear what is not the part's, 64 × 64 products, sums over tokens.
template <class T, int kPanels>
class Group {
 protected:
  using L = Layout<kPanels>;
  static constexpr int kWidth = kPanels * kPanelColumns;

 public:
  __device__ Group(const Block<T, kPanels>& block, int which) : b(block), consumer(which) {}

 protected:
  __device__ const TileNote& begin_tile() {
    barrier_wait(b.full(ring.stage), ring.parity);
    const TileNote& note = b.note(ring.stage);
    if (note.tokens > 0 && note.tokens < kTokens) {
      const int thread = consumer * kGroupThreads + group_thread();
      clear_rows<kPanels, kTokens, 2 * kGroupThreads>(b.x(ring.stage), note.tokens, thread);
      clear_rows<kPanels, kTokens, 2 * kGroupThreads>(b.dy(ring.stage), note.tokens, thread);
      publish_shared();
      barrier_arrive_as_warp(b.cleared());
      barrier_wait(b.cleared(), cleared_parity);
      cleared_parity ^= 1;
    }
    return note;
  }
  __device__ void end_tile() {
    barrier_arrive_as_warp(b.empty(ring.stage));
    ring.advance();
  }
  /// scores = tile (64 tokens) · rows (64 slots)ᵀ.
  __device__ void score(unsigned char* tile, unsigned char* rows) {
    const uint64_t of_tile = descriptor_along_k(shared_address(tile));
    const uint64_t of_rows = descriptor_along_k(shared_address(rows));
    products_begin();
#pragma unroll
    for (int step = 0; step < 4 * kPanels; ++step) {
      const int offset = ((step / 4) * kTokens * kPanelRowBytes + (step % 4) * 32) / 16;
      multiply_shared<T, 64, kAlongK, kAlongK>(scores, of_tile + offset, of_rows + offset, step > 0);
    }
    products_commit();
    products_wait<0>();
    pin(scores);
  }
  /// Scores, rounded, into a tile of 64 tokens × 64 slots, and then sums += that tileᵀ · tile.
  __device__ void put(unsigned char* target) {
    const int thread = group_thread();
    const int row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        *reinterpret_cast<uint32_t*>(target + swizzled(row + 8 * i, j) + (thread & 3) * 4) =
            pack<T>(scores[4 * j + 2 * i], scores[4 * j + 2 * i + 1]);
      }
    }
    publish_shared();
    named_barrier(consumer == 0 ? kFirstGroup : kSecondGroup, kGroupThreads);
  }
  __device__ void accumulate(unsigned char* by_slots, unsigned char* tile, bool first) {
    const uint64_t of_slots = descriptor_along_rows(shared_address(by_slots), kTokens * kPanelRowBytes);
    const uint64_t of_tile = descriptor_along_rows(shared_address(tile), kTokens * kPanelRowBytes);
    products_begin();
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      const int offset = step * 16 * kPanelRowBytes / 16;
      multiply_shared<T, kWidth, kAlongRows, kAlongRows>(sums, of_slots + offset, of_tile + offset, step > 0 || !first);
    }
    products_commit();
    products_wait<0>();
    pin(sums);
  }
  /// 64 slots × kWidth sums as floats into rows of `width`; the first `slots` rows exist.
  __device__ void write_sums(float* target, int width, int slots) const {
    const int thread = group_thread();
    const int row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      const int column = 8 * j + 2 * (thread & 3);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (column < width && row + 8 * i < slots) {
          *reinterpret_cast<float2*>(target + static_cast<int64_t>(row + 8 * i) * width + column) =
              make_float2(sums[4 * j + 2 * i], sums[4 * j + 2 * i + 1]);
        }
      }
    }
  }
  __device__ float* exchange() const {
    return reinterpret_cast<float*>(b.shared + L::kExchange) + group_thread();
  }
  __device__ uint32_t* kept_bits() const {
    return reinterpret_cast<uint32_t*>(b.shared + L::kKept) + group_thread();
  }

  const Block<T, kPanels>& b;
  const int consumer;
  uint32_t cleared_parity = 0;
  RingPlace<kStages> ring;
  float scores[32];
  float sums[kWidth / 2];
};

template <class T, int kPanels, bool kDropout>
class WeightsGroup : Group<T, kPanels> {
  using Base = Group<T, kPanels>;
  using L = Layout<kPanels>;
  using Base::b;
  using Base::ring;
  using Base::scores;

 public:
  __device__ explicit WeightsGroup(const Block<T, kPanels>& block) : Base(block, 0) {}

  __device__ void run() {
    MaskKey key{};
    if constexpr (kDropout) {
      key = {static_cast<uint64_t>(b.k.rng[0]), static_cast<uint64_t>(b.k.rng[1]), kSite, b.k.threshold};
    }
    for (uint32_t turn = 0;; turn ^= 1) {
      const TileNote& note = this->begin_tile();
      if (note.tokens == 0) {
        return;
      }
      this->score(b.x(ring.stage), b.shared + L::kF);
      const auto* bias = reinterpret_cast<const float2*>(b.shared + L::kBias);
      weigh_slots(
          scores, bias, [] { return group_thread() & 3; }, b.k.d_p, b.k.linear);
      barrier_wait(b.weights_taken(), turn ^ 1);  // those of the tile before; the first time nothing is waited for
      float* exchange = this->exchange();
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        exchange[i * kGroupThreads] = scores[i];
      }
      if constexpr (kDropout) {
        uint32_t all = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const uint32_t bits = kept_tokens_by_slots(
              key, static_cast<uint32_t>(note.sequence),
              static_cast<uint32_t>(note.first_token + group_thread() / 32 * 16),
              static_cast<uint32_t>(b.slot_block() * kBlockSlots + 8 * j + 2 * (group_thread() & 3)));
          all |= bits << (4 * j);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            scores[4 * j + e] = (bits >> e) & 1 ? scores[4 * j + e] * b.k.keep_scale : 0.0f;
          }
        }
        *this->kept_bits() = all;
      }
      barrier_arrive_as_warp(b.weights_ready());
      this->put(b.shared + L::kWeights);
      this->accumulate(b.shared + L::kWeights, b.dy(ring.stage), note.begins);
      if (note.ends) {
        const int first_slot = b.slot_block() * kBlockSlots;
        float* target = note.place < 0
                            ? b.k.dm + (static_cast<int64_t>(note.sequence) * b.k.slots + first_slot) * b.k.out_width
                            : b.k.dm_parts + static_cast<int64_t>(2 * b.k.ranges * b.slot_block() + note.place) *
                                                 kBlockSlots * b.k.out_width;
        this->write_sums(target, b.k.out_width, b.k.slots - first_slot);
      }
      this->end_tile();
      named_barrier(kFirstGroup, kGroupThreads);  // the weights' tile may be written again
    }
  }
};

template <class T, int kPanels, bool kDropout>
class GradientsGroup : Group<T, kPanels> {
  using Base = Group<T, kPanels>;
  using L = Layout<kPanels>;
  using Base::b;
  using Base::ring;
  using Base::scores;

 public:
  __device__ explicit GradientsGroup(const Block<T, kPanels>& block) : Base(block, 1) {}

  __device__ void run() {
    bool first = true;
    uint32_t m_parity = 0, turn = 0;
    while (true) {
      const TileNote& note = this->begin_tile();
      if (note.tokens == 0) {
        break;
      }
      if (note.begins) {
        barrier_wait(b.m_full(), m_parity);
        m_parity ^= 1;
      }
      this->score(b.dy(ring.stage), b.shared + L::kM);
      if (note.ends) {
        barrier_arrive_as_warp(b.m_empty());
      }
      barrier_wait(b.weights_ready(), turn);
      turn ^= 1;
      take_weights();
      this->put(b.shared + L::kGradients);
      write_gradients(note);
      this->accumulate(b.shared + L::kGradients, b.x(ring.stage), first);
      first = false;
      this->end_tile();
      named_barrier(kSecondGroup, kGroupThreads);  // the gradients' tile may be written again
      barrier_arrive_as_warp(b.weights_taken());
    }
    if (first) {  // not a single token
#pragma unroll
      for (int i = 0; i < Base::kWidth / 2; ++i) {
        this->sums[i] = 0.0f;
      }
    }
    const int64_t blocks = gridDim.y;
    this->write_sums(
        b.k.drows_parts + (b.range() * blocks + b.slot_block()) * kBlockSlots * static_cast<int64_t>(b.k.rows.width),
        b.k.rows.width, kBlockSlots);
    if (b.k.dbias_parts != nullptr) {
      write_bias(b.k.dbias_parts + (b.range() * blocks + b.slot_block()) * kBlockSlots);
    }
  }

 private:
  /// dU → dS, with the weights of the first group.
  __device__ void take_weights() {
    const float* exchange = this->exchange();
    if constexpr (kDropout) {
      const uint32_t bits = *this->kept_bits();
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        scores[i] = (bits >> i) & 1 ? scores[i] * b.k.keep_scale : 0.0f;
      }
    }
    if (!b.k.linear) {
      float weights[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        weights[i] = exchange[i * kGroupThreads];
      }
      with_slots(b.k.d_p, [&](auto slots) { softmax_gradient_over_groups<decltype(slots)::value>(weights, scores); });
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      column_sums[2 * j] += scores[4 * j] + scores[4 * j + 2];
      column_sums[2 * j + 1] += scores[4 * j + 1] + scores[4 * j + 3];
    }
  }

  __device__ void write_gradients(const TileNote& note) const {
    const int first_slot = b.slot_block() * kBlockSlots;
    auto* target = static_cast<T*>(b.k.dscores) + static_cast<int64_t>(note.row) * b.k.slots + first_slot;
    const unsigned char* tile = b.shared + L::kGradients;
    const int thread = group_thread();
#pragma unroll
    for (int round = 0; round < kTokens * 8 / kGroupThreads; ++round) {
      const int row = (thread + round * kGroupThreads) / 8;
      const int chunk = thread % 8;
      if (row < note.tokens && first_slot + chunk * 8 < b.k.slots) {
        *reinterpret_cast<uint4*>(target + static_cast<int64_t>(row) * b.k.slots + chunk * 8) =
            *reinterpret_cast<const uint4*>(tile + swizzled(row, chunk));
      }
    }
  }

  /// Σ dS over the range's tokens, through the exchange's place: lanes, then warps, in a fixed order.
  __device__ void write_bias(float* target) {
    const int thread = group_thread();
    auto* partial = reinterpret_cast<float*>(b.shared + L::kExchange);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float sum = column_sums[i];
      sum += __shfl_xor_sync(~0u, sum, 4);
      sum += __shfl_xor_sync(~0u, sum, 8);
      sum += __shfl_xor_sync(~0u, sum, 16);
      if (thread % 32 < 4) {
        partial[thread / 32 * kBlockSlots + (i / 2) * 8 + 2 * (thread & 3) + i % 2] = sum;
      }
    }
    named_barrier(kSecondGroup, kGroupThreads);
    if (thread < kBlockSlots) {
      target[thread] = partial[thread] + partial[thread + 64] + partial[thread + 128] + partial[thread + 192];
    }
  }

  float column_sums[16] = {};
};

}  // namespace dba::ops::cuda::hopper::restoring_backward

#pragma once

#include "ops/cuda/hopper_restore_tiles.cuh"
#include "ops/cuda/slot_softmax.cuh"

/// The warp groups of restore's kernel on Hopper that turn tokens into rows of Y: scores, weights, their product with
/// M.
namespace dba::ops::cuda::hopper::restoring {

/// A warp group's tiles: every second one.
template <class T, int kPanels, bool kDropout>
class Consumer {
  static constexpr int kWidth = kPanels * kPanelColumns;

 public:
  __device__ Consumer(const Block<T, kPanels>& block, int which) : b(block), consumer(which) {
    if constexpr (kDropout) {
      key = {static_cast<uint64_t>(b.k.rng[0]), static_cast<uint64_t>(b.k.rng[1]), kSite, b.k.threshold};
    }
  }

  __device__ void run() {
    int stage = consumer;
    uint32_t parity = 0;
    while (stage >= b.k.stages) {
      stage -= b.k.stages;
      parity ^= 1;
    }
    int part = -1;
    while (true) {
      barrier_wait(b.full(stage), parity);
      const TileNote& note = b.note(stage);
      if (note.tokens == 0) {
        return;
      }
      // A tile of a part comes after the parts before it in M's buffer were let go, so that this round is meant.
      if (part != note.part) {
        part = note.part;
        barrier_wait(b.m_full(part % b.k.m_buffers), part / b.k.m_buffers & 1);
      }
      for (int slot_block = 0; slot_block < b.k.slot_blocks; ++slot_block) {
        score(stage, slot_block);
        weigh(note, slot_block);
        mix(part, slot_block);
      }
      if (note.leaves) {
        barrier_arrive_as_warp(b.m_empty(part % b.k.m_buffers));
      }
      put_in_place(stage);
      barrier_arrive_as_warp(b.mixed(stage));
      stage += 2;
      while (stage >= b.k.stages) {
        stage -= b.k.stages;
        parity ^= 1;
      }
    }
  }

 private:
  /// scores = X Fᵀ for 64 slots.
  __device__ void score(int stage, int slot_block) {
    const uint64_t of_tile = descriptor_along_k(shared_address(b.tile(stage)));
    const uint64_t of_rows =
        descriptor_along_k(shared_address(b.shared + b.at.f + slot_block * Layout<kPanels>::kBlock));
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

  __device__ void weigh(const TileNote& note, int slot_block) {
    const auto* bias = reinterpret_cast<const float2*>(b.shared + b.at.bias) + slot_block * kBlockSlots / 2;
    weigh_slots(
        scores, bias, [] { return warp_lane() & 3; }, b.k.d_p, b.k.linear);
    if constexpr (kDropout) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t bits =
            kept_tokens_by_slots(key, static_cast<uint32_t>(note.sequence),
                                 static_cast<uint32_t>(note.first_token + group_thread() / 32 * 16),
                                 static_cast<uint32_t>(slot_block * kBlockSlots + 8 * j + 2 * (warp_lane() & 3)));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          scores[4 * j + e] = (bits >> e) & 1 ? scores[4 * j + e] * b.k.keep_scale : 0.0f;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      weights[i] = pack<T>(scores[2 * i], scores[2 * i + 1]);
    }
  }

  /// sums += weights · M.
  __device__ void mix(int part, int slot_block) {
    const uint64_t of_m = descriptor_along_rows(shared_address(b.m(part) + slot_block * Layout<kPanels>::kBlock),
                                                kBlockSlots * kPanelRowBytes);
    products_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t fragment[4] = {weights[4 * step], weights[4 * step + 1], weights[4 * step + 2],
                                    weights[4 * step + 3]};
      multiply_register<T, kWidth, kAlongRows>(sums, fragment, of_m + step * 16 * kPanelRowBytes / 16,
                                               step > 0 || slot_block > 0);
    }
    products_commit();
    products_wait<0>();
    pin(sums);
  }

  /// Rows of Y take the tile's own place in shared memory. A lane's address differs from panel to panel by a constant,
  /// inside a panel by the bits that its row swizzles.
  __device__ void put_in_place(int stage) {
    const auto* out_bias = reinterpret_cast<const float2*>(b.shared + b.at.out_bias) + (warp_lane() & 3);
    const int row = group_thread() / 32 * 16 + (warp_lane() & 15);
    const uint32_t first = shared_address(b.tile(stage)) + swizzled(row, warp_lane() >> 4);
    named_barrier(1 + consumer, kGroupThreads);  // all four warps have read the tile
#pragma unroll
    for (int j = 0; j < kWidth / 8; j += 2) {
      uint32_t v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 bias = out_bias[4 * (j + i / 2)];
        v[i] = pack<T>(sums[4 * j + 2 * i] + bias.x, sums[4 * j + 2 * i + 1] + bias.y);
      }
      store_tiles((first ^ (j % 8 << 4)) + j / 8 * kTokens * kPanelRowBytes, v[0], v[1], v[2], v[3]);
    }
    publish_shared();
  }

  const Block<T, kPanels>& b;
  const int consumer;
  MaskKey key{};
  float scores[32];
  uint32_t weights[16];
  float sums[kWidth / 2];
};

}  // namespace dba::ops::cuda::hopper::restoring

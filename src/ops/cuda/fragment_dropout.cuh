#pragma once

#include <cstdint>

#include "ops/philox.h"

/// The dropout mask in the layout of a product's accumulators (wgmma.cuh): the four entries that a thread holds in a
/// block of 8 columns, as bits: bit 2 i + c belongs to row l / 4 + 8 i, column 2 (l % 4) + c. Threads that share a
/// call of the generator divide the calls among themselves.
namespace dba::ops::cuda {

struct MaskKey {
  uint64_t seed;
  uint64_t offset;
  uint32_t site;
  uint32_t threshold;

  __device__ uint32_t quad_bits(uint32_t sequence, uint32_t slot, uint32_t quad) const {
    const auto words = philox::token_quad(seed, offset, site, sequence, slot, quad);
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bits |= (words.word[i] >= threshold ? 1u : 0u) << i;
    }
    return bits;
  }
};

/// Rows are slots, columns tokens. slot: of row l / 4; token: of the block's first column, a multiple of four.
__device__ inline uint32_t kept_slots_by_tokens(const MaskKey& key, uint32_t sequence, uint32_t slot, uint32_t token) {
  const uint32_t lane = threadIdx.x & 31;
  const bool odd = lane & 1;
  const uint32_t quad = (token >> 2) + ((lane >> 1) & 1);
  const uint32_t own = key.quad_bits(sequence, odd ? slot + 8 : slot, quad);
  const uint32_t other = __shfl_xor_sync(~0u, own, 1);
  const uint32_t of_row = odd ? other >> 2 : own;
  const uint32_t of_row_8 = odd ? own >> 2 : other;
  return (of_row & 3u) | ((of_row_8 & 3u) << 2);
}

/// Rows are tokens, columns slots. token: of the warp's row 0, a multiple of four; slot: of column 2 (l % 4).
__device__ inline uint32_t kept_tokens_by_slots(const MaskKey& key, uint32_t sequence, uint32_t token, uint32_t slot) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t index = (lane >> 2) & 3;  // among the four lanes whose rows share a quad
  const uint32_t quad = ((token + 8 * (index >> 1)) >> 2) + (lane >> 4);
  const uint32_t own = key.quad_bits(sequence, slot + (index & 1), quad);
  uint32_t bits = 0;
#pragma unroll
  for (uint32_t entry = 0; entry < 4; ++entry) {
    const uint32_t theirs = __shfl_sync(~0u, own, (lane & 0x13) | (entry << 2));
    bits |= ((theirs >> index) & 1u) << entry;
  }
  return bits;
}

}  // namespace dba::ops::cuda

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/core.h"
#include "ops/cuda/core_product.cuh"
#include "ops/philox.h"

/// The attention between slots, P' = softmax over slots(q kᵀ), for the sequences and heads that one block holds.
/// Row u of a block's arrays over (head, sequence, slot) is head · rows + sequence · d_p + slot, rows = sequences ·
/// d_p.
namespace dba::ops::cuda {

constexpr float kLayerNormEps = 1e-5f;
constexpr int kMostSlots = 256;

__host__ __device__ constexpr int round_up(int size, int unit) {
  return (size + unit - 1) / unit * unit;
}

/// Floats between two rows of an array in shared memory, so that the tiles' vector loads meet different banks.
__host__ __device__ constexpr int padded_stride(int width) {
  return round_up(width, 8) + 4;
}

__device__ inline void put(const MixOut& out, int64_t index, float value) {
  out.m[index] = value;
  if (out.rounded != nullptr) {
    if (out.type == Element::bfloat16) {
      static_cast<__nv_bfloat16*>(out.rounded)[index] = __float2bfloat16_rn(value);
    } else {
      static_cast<__half*>(out.rounded)[index] = __float2half_rn(value);
    }
  }
}

/// What a block works on.
struct BlockShare {
  int first_sequence;
  int sequences;
  int first_head;
  int heads;
  int d_p;

  __device__ int rows() const {
    return sequences * d_p;
  }
};

/// Rows of several heads: (row, head) at data + row · stride + head · head_stride.
struct HeadRows {
  const float* data;
  int64_t stride;
  int64_t head_stride;

  __device__ const float* at(int row, int head) const {
    return data + row * stride + head * head_stride;
  }
};

template <int Width>
__device__ inline float group_sum(float value) {
#pragma unroll
  for (int offset = Width / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(~0u, value, offset);
  }
  return value;
}

template <int Width>
__device__ inline float group_max(float value) {
#pragma unroll
  for (int offset = Width / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, offset));
  }
  return value;
}

/// The dropout of P' at query slot, key slot.
struct SlotMask {
  uint64_t seed = 0;
  uint64_t offset = 0;
  uint32_t threshold = 0;
  float scale = 1.0f;
  bool on = false;

  __device__ explicit SlotMask(const CoreDropout& dropout) {
    on = dropout.rng != nullptr;
    if (on) {
      seed = static_cast<uint64_t>(dropout.rng[0]);
      offset = static_cast<uint64_t>(dropout.rng[1]);
      threshold = dropout.threshold;
      scale = dropout.scale;
    }
  }
  __device__ float operator()(int sequence, int slot, int key) const {
    if (!on) {
      return 1.0f;
    }
    const auto words = philox::token_quad(seed, offset, dropout_site::kCore, static_cast<uint32_t>(sequence),
                                          static_cast<uint32_t>(slot), static_cast<uint32_t>(key >> 2));
    const int word = key & 3;
    const uint32_t drawn = word == 0   ? words.word[0]
                           : word == 1 ? words.word[1]
                           : word == 2 ? words.word[2]
                                       : words.word[3];
    return drawn >= threshold ? scale : 0.0f;
  }
};

/// P' row by row, `Width` lanes a row and `Each` slots a lane: `dropped` (after dropout, zero up to a multiple of eight
/// columns) and, where wanted, `p` before it. `width` is that of q and k.
template <int Width, int Each>
__device__ void softmax_rows(const BlockShare& share, const HeadRows& q, const HeadRows& k, int width, float scale,
                             const SlotMask& mask, float* p, float* dropped, int stride) {
  const int lane = threadIdx.x & 31;
  const int units = share.heads * share.rows();
  const int per_warp = 32 / Width;
  for (int base = (threadIdx.x / 32) * per_warp; base < units; base += blockDim.x / 32 * per_warp) {
    const int unit = base + lane / Width;
    const bool real = unit < units;
    const int head = real ? unit / share.rows() : 0;
    const int row = real ? unit % share.rows() : 0;
    const int sequence = row / share.d_p;
    const float* query = q.at(row, head);
    float value[Each];
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < Each; ++i) {
      const int key = lane % Width + i * Width;
      value[i] = -INFINITY;
      if (key < share.d_p) {
        const float* other = k.at(sequence * share.d_p + key, head);
        float sum = 0.0f;
        for (int x = 0; x < width; ++x) {
          sum = fmaf(query[x], other[x], sum);
        }
        value[i] = sum * scale;
      }
      largest = fmaxf(largest, value[i]);
    }
    largest = group_max<Width>(largest);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < Each; ++i) {
      value[i] = lane % Width + i * Width < share.d_p ? expf(value[i] - largest) : 0.0f;
      sum += value[i];
    }
    const float inverse = 1.0f / group_sum<Width>(sum);
#pragma unroll
    for (int i = 0; i < Each; ++i) {
      const int key = lane % Width + i * Width;
      if (real && key < stride) {
        const float weight = value[i] * inverse;
        const int slot = (share.first_head + head) * share.d_p + row % share.d_p;
        const bool inside = key < share.d_p;
        dropped[unit * stride + key] = inside ? weight * mask(share.first_sequence + sequence, slot, key) : 0.0f;
        if (p != nullptr) {
          p[unit * stride + key] = weight;
        }
      }
    }
  }
}

/// Picks the number of lanes for a row; stride is at most four more than the next multiple of eight.
__device__ inline void slot_softmax(const BlockShare& share, const HeadRows& q, const HeadRows& k, int width,
                                    float scale, const SlotMask& mask, float* p, float* dropped, int stride) {
  if (share.d_p <= 8) {
    softmax_rows<8, 1>(share, q, k, width, scale, mask, p, dropped, stride);
  } else if (share.d_p <= 16) {
    softmax_rows<16, 1>(share, q, k, width, scale, mask, p, dropped, stride);
  } else if (share.d_p <= 32) {
    softmax_rows<32, 1>(share, q, k, width, scale, mask, p, dropped, stride);
  } else {
    softmax_rows<32, kMostSlots / 32>(share, q, k, width, scale, mask, p, dropped, stride);
  }
}

/// The tiles of products that go sequence by sequence: work(head, first row of the sequence, first slot of a tile of
/// 16, first column of a tile of `columns_of_tile`), one warp each.
template <class Work>
__device__ inline void for_each_sequence_tile(const BlockShare& share, int columns, int columns_of_tile,
                                              const Work& work) {
  const int slot_tiles = (share.d_p + 15) / 16;
  const int column_tiles = (columns + columns_of_tile - 1) / columns_of_tile;
  const int tiles = share.heads * share.sequences * slot_tiles * column_tiles;
  for (int tile = threadIdx.x / 32; tile < tiles; tile += blockDim.x / 32) {
    const int column = tile % column_tiles * columns_of_tile;
    const int slot = tile / column_tiles % slot_tiles * 16;
    const int sequence = tile / (column_tiles * slot_tiles) % share.sequences;
    const int head = tile / (column_tiles * slot_tiles * share.sequences);
    work(head, sequence * share.d_p, slot, column);
  }
}

/// O = P' V into `out`: (row, head · width + column) at out + row · out_stride + …
template <class Math, bool Aligned>
__device__ inline void mix_values(const BlockShare& share, const float* dropped, int stride, const HeadRows& v,
                                  int width, float* out, int64_t out_stride) {
  for_each_sequence_tile(share, width, 32, [&](int head, int first_row, int slot, int column) {
    const float* p = dropped + (head * share.rows() + first_row) * stride;
    const Along<float, true> a{{p, 0, stride, share.d_p}, slot, share.d_p, round_up(share.d_p, 8)};
    const Across<float, Aligned> b{{v.at(first_row, head), 0, v.stride, share.d_p}, column, width, share.d_p};
    tile_product<Math, 1, 4>(a, b, share.d_p, [&](int i, int j, float value) {
      out[(first_row + i) * out_stride + head * width + j] = value;
    });
  });
}

/// Mean and 1/deviation of a row in shared memory, by one warp.
struct Moments {
  float mean;
  float rstd;

  __device__ Moments(const float* row, int width) {
    const int lane = threadIdx.x & 31;
    float sum = 0.0f;
    for (int j = lane; j < width; j += 32) {
      sum += row[j];
    }
    mean = group_sum<32>(sum) / static_cast<float>(width);
    float squares = 0.0f;
    for (int j = lane; j < width; j += 32) {
      squares = fmaf(row[j] - mean, row[j] - mean, squares);
    }
    rstd = 1.0f / sqrtf(group_sum<32>(squares) / static_cast<float>(width) + kLayerNormEps);
  }
};

}  // namespace dba::ops::cuda

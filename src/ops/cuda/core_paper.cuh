#pragma once

#include "ops/cuda/core_tiles.cuh"
#include "ops/cuda/named_barrier.cuh"

/// What the warps of core_paper.cu do with a sequence, and where things lie.
namespace dba::ops::cuda::paper {

using namespace tiles;

constexpr int kLiftWarps = 12;  // four for each of queries, keys, values; 16 columns each
constexpr int kLiftThreads = 32 * kLiftWarps;
constexpr int kTeams = 2;  // that make M, of every other sequence each
constexpr int kTeamThreads = 32 * kMixWarps;
constexpr int kThreads = kLiftThreads + kTeams * kTeamThreads;
constexpr int kStages = 3;
constexpr int kMostNarrow = 64;  // e

/// Floats between rows of R, whose columns are filled up to tiles of eight: four lanes' rows meet different banks.
__host__ __device__ constexpr int width_stride(int e) {
  return round_up(e, 8) + 4;
}

/// Shared memory of a thread block; each part begins at a multiple of 16 bytes. R follows, as floats.
template <int kDepth>
struct Shared {
  float summaries[kStages][3][kSlots * summary_stride(kDepth)];
  float sums[kStages][3][kSlots];  // r
  float lifted[kTeams][3][kSlots * kLiftedStride];
  uint4 out[kMostOut * kOutPieces];  // W_O

  static int bytes(const CorePaperArguments& given) {
    return static_cast<int>(sizeof(Shared)) + (given.width != nullptr ? 4 * kHeadWidth * width_stride(given.e) : 0);
  }
};

/// Places where warps meet: those that lift; those that make M; and, for each team, those that lift and the team, when
/// its buffer is full and when it is empty. Id 0 is __syncthreads.
enum Meeting { kLifters = 1, kMixers = 2, kFull = 3, kEmpty = kFull + kTeams };

/// Eight columns of q and k behind R, in two sums each: half as long a chain of products.
__device__ inline void narrow(float (&q)[4], float (&k)[4], const float* lifted, const float* width, int stride) {
  const Lane lane;
  float sum[2][2][4] = {};
#pragma unroll 2
  for (int step = 0; step < kHeadWidth / 8; step += 2) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const float* const from = width + (8 * (step + part) + 2 * lane.t) * stride + lane.g;
      const uint32_t b[2] = {__float_as_uint(from[0]), __float_as_uint(from[stride])};
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        float a[4];
        load_tile<kLiftedStride>(a, lifted + which * kSlots * kLiftedStride + 8 * (step + part));
        multiply(sum[which][part], LeftTile(a), b);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    q[i] = sum[0][0][i] + sum[0][1][i];
    k[i] = sum[1][0][i] + sum[1][1][i];
  }
}

/// P' of one head and sequence; tile j has keys 8j to 8j + 7. `width`: R or null.
__device__ inline void attend(float (&p)[2][4], const CorePaperArguments& given, const float* lifted,
                              const float* width, int sequence, int head) {
  const Lane lane;
  const float* const mine = lifted + lane.g * kLiftedStride + 2 * lane.t;
#pragma unroll 1
  for (int tile = 0; tile < (given.e + 7) / 8; ++tile) {
    float q[4], k[4];
    if (width != nullptr) {
      narrow(q, k, mine, width + 8 * tile, width_stride(given.e));
    } else {
      load_tile<kLiftedStride>(q, mine + 8 * tile);
      load_tile<kLiftedStride>(k, mine + kSlots * kLiftedStride + 8 * tile);
    }
    add_scores(p, q, k);
  }
  weigh_keys(p, given.e, SlotMask(given.dropout), sequence, head);
}

}  // namespace dba::ops::cuda::paper

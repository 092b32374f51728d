#pragma once

#include "ops/cuda/core_tiles.cuh"
#include "ops/cuda/hopper_cluster.cuh"
#include "ops/cuda/hopper_core.h"

/// What a team of hopper_core_released.cu does with a sequence, and where things lie.
namespace dba::ops::cuda::hopper::released {

using namespace tiles;

constexpr int kTeams = 3;
constexpr int kTeamWarps = 4;
constexpr int kTeamThreads = 32 * kTeamWarps;
constexpr int kThreads = kTeams * kTeamThreads;
constexpr int kMostScore = 16;                         // e
constexpr int kScoreRows = kTeamWarps * 8;             // of W_q and W_k: a tile for each warp
constexpr int kScoreStride = 24;                       // floats between slots of q, and of k
constexpr int kPartColumns = kHeadWidth / kTeamWarps;  // that a warp has of a row of O
constexpr int kFragmentPieces = 2 * kTeamWarps * 32;   // O as the operand of W_O: values, then remainders

/// Row `row` (0 … 31) of the tiles of W_q and W_k: those of columns 0 … 7, one after the other, then of 8 … 15.
struct ScoreRow {
  bool key;
  int column;
  __device__ explicit ScoreRow(int row) : key(row / 8 % 2 != 0), column(row / 16 * 8 + row % 8) {}
};

/// A head's vectors, as floats.
struct Vectors {
  float value_bias[kHeadWidth];
  float norm_weight[kHeadWidth];
  float norm_bias[kHeadWidth];
  float score_bias[kScoreRows];
};

/// Shared memory of a thread block; each part begins at a multiple of 16 bytes.
template <int kDepth>
struct Shared {
  static constexpr int kHeads = kDepth / kHeadWidth;
  static constexpr int kPieces = kDepth / 8;  // of a row of a projection's weights
  static constexpr int kStride = summary_stride(kDepth);

  struct OfTeam {
    float summaries[kSlots * kStride];
    float sums[kSlots];  // r
    float compressed[kSlots * kStride];
    float values[kSlots * kLiftedStride];
    float scores[2][kSlots * kScoreStride];  // q, k
    uint4 fragments[kFragmentPieces];
    float2 moments[kHeads * kTeamWarps * kSlots];  // mean and Σ (o − mean)² of a warp's columns
  };

  uint4 projected[(kHeadWidth + kScoreRows) * kPieces];  // W_v, then W_q and W_k
  uint4 out[kMostOut * kOutPieces];
  Vectors vectors;
  OfTeam team[kTeams];
};

/// Number `index` of a vector, or 0 where there is none.
template <class T>
__device__ inline float number_or_zero(const void* from, int index) {
  return from == nullptr ? 0.0f : widened(static_cast<const T*>(from)[index]);
}

/// Asks for most of a head's weights ahead of time.
template <class T, int kDepth>
__device__ inline void expect_weights(const CoreReleasedArguments& given, int head) {
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t begin = static_cast<int64_t>(head) * kHeadWidth * kDepth;
  for (const void* weight : {given.compress_weight, given.value_weight}) {
    expect_rows(static_cast<const T*>(weight) + begin, kHeadWidth, kDepth, kDepth, thread, kThreads);
  }
  expect_rows(static_cast<const T*>(given.out_weight) + head * kHeadWidth, given.out_width, kHeadWidth, kDepth, thread,
              kThreads);
}

/// W_v, W_q, W_k and W_O of a head into shared memory, as one group of copies of each thread; and its vectors.
template <class T, int kDepth>
__device__ inline void fetch_weights(const CoreReleasedArguments& given, int head, Shared<kDepth>& shared) {
  constexpr int kPieces = Shared<kDepth>::kPieces;
  const int thread = static_cast<int>(threadIdx.x);
  copy_pieces(shared.projected,
              static_cast<const T*>(given.value_weight) + static_cast<int64_t>(head) * kHeadWidth * kDepth, kHeadWidth,
              kPieces, kDepth, thread, kThreads);
#pragma unroll 1
  for (int i = thread; i < kScoreRows * kPieces; i += kThreads) {
    const ScoreRow row(i / kPieces);
    const int piece = i % kPieces;
    uint4* const to = shared.projected + piece_place(kHeadWidth + i / kPieces, piece, kPieces);
    if (row.column < given.e) {
      const T* const weight = static_cast<const T*>(row.key ? given.key_weight : given.query_weight);
      copy_async<16>(to, weight + static_cast<int64_t>(head * given.e + row.column) * kDepth + 8 * piece);
    } else {
      *to = {};
    }
  }
  copy_pieces(shared.out, static_cast<const T*>(given.out_weight) + head * kHeadWidth, given.out_width, kOutPieces,
              kDepth, thread, kThreads);
  commit_copies();
  if (thread < kHeadWidth) {
    const int column = head * kHeadWidth + thread;
    shared.vectors.value_bias[thread] = number_or_zero<T>(given.value_bias, column);
    shared.vectors.norm_weight[thread] = number_or_zero<T>(given.norm_weight, column);
    shared.vectors.norm_bias[thread] = number_or_zero<T>(given.norm_bias, column);
  } else if (thread < kHeadWidth + kScoreRows) {
    const ScoreRow row(thread - kHeadWidth);
    shared.vectors.score_bias[thread - kHeadWidth] =
        row.column < given.e
            ? number_or_zero<T>(row.key ? given.key_bias : given.query_bias, head * given.e + row.column)
            : 0.0f;
  }
}

/// Starts the copies of one head's summaries and row sums of a sequence.
template <int kDepth>
__device__ inline void fetch_summaries(const CoreReleasedArguments& given, int sequence, int head,
                                       typename Shared<kDepth>::OfTeam& own) {
  constexpr int kQuads = kDepth / 4;
  constexpr int kStride = summary_stride(kDepth);
  const int of_team = static_cast<int>(threadIdx.x) % kTeamThreads;
  const int64_t row = (static_cast<int64_t>(sequence) * Shared<kDepth>::kHeads + head) * kSlots;
  const float* const from = given.c + row * kDepth + 4 * of_team;
  float* const to = own.summaries + of_team / kQuads * kStride + of_team % kQuads * 4;
#pragma unroll
  for (int i = 0; i < kSlots * kQuads / kTeamThreads; ++i) {
    copy_async<16>(to + i * (kTeamThreads / kQuads) * kStride, from + i * 4 * kTeamThreads);
  }
  if (of_team < kSlots) {
    copy_async<4>(own.sums + of_team, given.r + row + of_team);
  }
}

/// V, and a tile of q or k, from all of C: 16 columns and eight of a warp.
template <class T, int kDepth>
__device__ inline void project(const Shared<kDepth>& shared, typename Shared<kDepth>::OfTeam& own, int member) {
  using S = Shared<kDepth>;
  const Lane lane;
  const int column = kPartColumns * member;
  float sum[3][4] = {};
  lift<T, kDepth, 2, true>(sum, own.compressed + lane.g * S::kStride + 8 * lane.t, [&](int tile, int block) {
    const int row = tile < 2 ? column + lane.row_of_pair() + 2 * tile : kHeadWidth + 8 * member + lane.g;
    return shared.projected[row * S::kPieces + lane.piece(block)];
  });
  const float4 of_value = *reinterpret_cast<const float4*>(shared.vectors.value_bias + column + 4 * lane.t);
  const float2 of_score = *reinterpret_cast<const float2*>(shared.vectors.score_bias + 8 * member + 2 * lane.t);
  float* const scores = own.scores[member % 2] + member / 2 * 8 + 2 * lane.t;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane.g + 8 * half;
    float* const to = own.values + row * kLiftedStride;
    *reinterpret_cast<float2*>(to + value_place(column + 4 * lane.t)) =
        make_float2(sum[0][2 * half] + of_value.x, sum[0][2 * half + 1] + of_value.y);
    *reinterpret_cast<float2*>(to + value_place(column + 4 * lane.t + 2)) =
        make_float2(sum[1][2 * half] + of_value.z, sum[1][2 * half + 1] + of_value.w);
    *reinterpret_cast<float2*>(scores + row * kScoreStride) =
        make_float2(sum[2][2 * half] + of_score.x, sum[2][2 * half + 1] + of_score.y);
  }
}

/// The warp's 16 columns of O = P' V.
template <class Own>
__device__ inline void attend(float (&mixed)[2][4], const CoreReleasedArguments& given, const Own& own, int member,
                              int sequence, int head) {
  const Lane lane;
  float p[2][4] = {};
#pragma unroll 1
  for (int tile = 0; tile < (given.e + 7) / 8; ++tile) {
    const int from = lane.g * kScoreStride + 8 * tile + 2 * lane.t;
    float q[4], k[4];
    load_tile<kScoreStride>(q, own.scores[0] + from);
    load_tile<kScoreStride>(k, own.scores[1] + from);
    add_scores(p, q, k);
  }
  weigh_keys(p, given.e, SlotMask(given.dropout), sequence, head);
  mix_values(mixed, {LeftTile(p[0]), LeftTile(p[1])}, own.values, member);
}

/// Stores mean and Σ (o − mean)² of the warp's columns of O, row by row, to all thread blocks.
template <int kHeads>
__device__ inline void send_moments(const float (&mixed)[2][4], float2* moments, uint64_t* barrier, int part) {
  const Lane lane;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float o[4] = {mixed[0][2 * row], mixed[0][2 * row + 1], mixed[1][2 * row], mixed[1][2 * row + 1]};
    const float mean = quad_sum(o[0] + o[1] + o[2] + o[3]) / kPartColumns;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      squares = fmaf(o[i] - mean, o[i] - mean, squares);
    }
    squares = quad_sum(squares);
    if (lane.t < kHeads) {
      store_in(moments + part * kSlots + lane.g + 8 * row, barrier, lane.t, make_float2(mean, squares));
    }
  }
}

/// The LayerNorm over all heads of the warp's columns of O, in place; the moments are those of all warps.
template <int kHeads>
__device__ inline void normalise(float (&mixed)[2][4], const float2* moments, const Vectors& vectors, int member) {
  const Lane lane;
  const int column = member / 2 * 32 + member % 2 * 4 + 8 * lane.t;  // the first of the lane's four, see mix_values
  const float4 weight = *reinterpret_cast<const float4*>(vectors.norm_weight + column);
  const float4 bias = *reinterpret_cast<const float4*>(vectors.norm_bias + column);
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float2 part[kHeads];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      part[i] = moments[(4 * i + lane.t) * kSlots + lane.g + 8 * row];
      sum += part[i].x;
    }
    const float mean = quad_sum(sum) / (kHeads * kTeamWarps);
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      const float apart = part[i].x - mean;
      squares += fmaf(kPartColumns * apart, apart, part[i].y);
    }
    const float inverse = rsqrtf(quad_sum(squares) / (kHeads * kHeadWidth) + kLayerNormEps);
    mixed[0][2 * row] = fmaf((mixed[0][2 * row] - mean) * inverse, weight.x, bias.x);
    mixed[0][2 * row + 1] = fmaf((mixed[0][2 * row + 1] - mean) * inverse, weight.y, bias.y);
    mixed[1][2 * row] = fmaf((mixed[1][2 * row] - mean) * inverse, weight.z, bias.z);
    mixed[1][2 * row + 1] = fmaf((mixed[1][2 * row + 1] - mean) * inverse, weight.w, bias.w);
  }
}

/// A warp's columns of O for the team, as an operand of W_O.
template <class T>
__device__ inline void hand_over(uint4* fragments, const float (&mixed)[2][4], int member) {
  const SplitTile<T> tile = split<T>(mixed);
  uint4* const to = fragments + member * 32 + threadIdx.x % 32;
  to[0] = make_uint4(tile.value[0], tile.value[1], tile.value[2], tile.value[3]);
  to[kTeamWarps * 32] = make_uint4(tile.rest[0], tile.rest[1], tile.rest[2], tile.rest[3]);
}

template <class T>
__device__ inline void take_over(SplitTile<T> (&tiles)[kTeamWarps], const uint4* fragments) {
#pragma unroll
  for (int i = 0; i < kTeamWarps; ++i) {
    const uint4 value = fragments[i * 32 + threadIdx.x % 32];
    const uint4 rest = fragments[(kTeamWarps + i) * 32 + threadIdx.x % 32];
    tiles[i].value[0] = value.x, tiles[i].value[1] = value.y, tiles[i].value[2] = value.z, tiles[i].value[3] = value.w;
    tiles[i].rest[0] = rest.x, tiles[i].rest[1] = rest.y, tiles[i].rest[2] = rest.z, tiles[i].rest[3] = rest.w;
  }
}

}  // namespace dba::ops::cuda::hopper::released

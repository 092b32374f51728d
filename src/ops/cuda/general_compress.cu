#include <cmath>

#include "ops/cuda/general.h"
#include "ops/cuda/general_launch.cuh"
#include "ops/cuda/general_merge.h"
#include "ops/cuda/general_pipeline.cuh"
#include "ops/cuda/general_rows.cuh"

namespace dba::ops::cuda::general {
namespace {

struct CompressPlan {
  Split split;
  int blocks = 0;  // of kTileRows slots
  int chunks = 0;  // of the width
  int stages = 0;
  bool x_aligned = false;
  bool rows_aligned = false;
  Dropping dropping;
  SummaryPartials partials;
};

CompressPlan plan_compress(const CompressArguments& given, Scratch& scratch) {
  CompressPlan plan;
  const int rows = row_count(given.rows);
  plan.blocks = (rows + kTileRows - 1) / kTileRows;
  plan.chunks = chunks_of(given.x.width, doubled_tile_width(given.element, given.x.width));
  plan.split = split_rows(given.x.rows, static_cast<int64_t>(plan.blocks) * plan.chunks,
                          resident_blocks(given.element, given.x.width));
  plan.x_aligned = aligned_rows(given.x.data, given.x.stride, element_bytes(given.element));
  plan.rows_aligned = aligned_rows(given.rows, given.x.width, element_bytes(given.element));
  plan.dropping = dropping(given.dropout);
  const int64_t places = plan.split.places();
  plan.partials.c = scratch.take<float>(places * rows * given.x.width);
  plan.partials.statistics = scratch.take<float>(places * plan.chunks * rows * 3);
  return plan;
}

/// Shared memory: tiles of X, a stage each; tiles of score rows, one for good where the width is one chunk, else a
/// stage each; the weights; what the accumulators are multiplied by; what the warps with the two sides of a row of
/// scores tell each other; the dropout's bits.
template <class Math, int kWidth>
struct CompressMemory {
  using E = typename Math::Element;
  static constexpr int kTile = kTileRows * row_stride<E>(kWidth);
  static constexpr int kWeightStride = row_stride<E>(kTileRows);
  using Keep = KeepBits<kTileRows, kTileRows>;
  static constexpr int kSides = BlockWarps<E, kWidth>::kSides;
  /// What sides tell each other, [what][side][row]: the largest score of a tile, sums, sums after dropout.
  enum OfSides { kLargest, kSum, kDroppedSum, kOfSidesCount };
  static constexpr int kOfSides = kSides == 1 ? 0 : kOfSidesCount * kTileRows * kSides;

  E* tiles;
  E* weights;
  float* factor;
  float* of_sides;
  Keep* keep;
  int stages, chunks;

  __device__ CompressMemory(char* memory, int stages, int chunks) : stages(stages), chunks(chunks) {
    tiles = reinterpret_cast<E*>(memory);
    weights = tiles + (stages + (chunks > 1 ? stages : 1)) * kTile;
    factor = reinterpret_cast<float*>(weights + kTileRows * kWeightStride);
    of_sides = factor + kTileRows;
    keep = reinterpret_cast<Keep*>(of_sides + kOfSides);
  }
  __device__ E* x(int stage) const {
    return tiles + stage * kTile;
  }
  __device__ E* rows(int stage) const {
    return tiles + (stages + (chunks > 1 ? stage : 0)) * kTile;
  }
  static constexpr int bytes(int stages, int chunks) {
    return static_cast<int>((stages + (chunks > 1 ? stages : 1)) * kTile * sizeof(E) +
                            kTileRows * kWeightStride * sizeof(E) + (kTileRows + kOfSides) * sizeof(float) +
                            sizeof(Keep));
  }

  /// A row's value of both sides, each handing in its own. All threads of the block call this.
  template <class Combine>
  __device__ void combine_sides(float (&values)[2], const int (&rows)[2], OfSides what, const Combine& combine) const {
    if constexpr (kSides > 1) {
      float* first = of_sides + what * kSides * kTileRows;
      if ((lane_index() & 3) == 0) {
        for (int half = 0; half < 2; ++half) {
          first[score_side() * kTileRows + rows[half]] = values[half];
        }
      }
      __syncthreads();
      for (int half = 0; half < 2; ++half) {
        values[half] = combine(first[rows[half]], first[kTileRows + rows[half]]);
      }
    }
  }
};

/// A block: a range of rows, kTileRows slots, one chunk of C's columns. For every tile of tokens the scores are summed
/// over all chunks of the width, the block's own last, whose X then also serves the product W X.
template <class Math, int kWidth>
__global__ void __launch_bounds__(BlockWarps<typename Math::Element, kWidth>::kThreads,
                                  BlockWarps<typename Math::Element, kWidth>::kResident)
    compress_kernel(CompressArguments given, CompressPlan plan) {
  using E = typename Math::Element;
  using Warps = BlockWarps<E, kWidth>;
  extern __shared__ __align__(16) char shared[];
  using Memory = CompressMemory<Math, kWidth>;
  const Memory memory(shared, plan.stages, plan.chunks);
  constexpr int kStride = row_stride<E>(kWidth);
  constexpr int kWeightStride = row_stride<E>(kTileRows);

  const int slot0 = static_cast<int>(blockIdx.x) % plan.blocks * kTileRows;
  const int own = static_cast<int>(blockIdx.x) / plan.blocks % plan.chunks;
  const int64_t range = static_cast<int64_t>(blockIdx.x) / plan.blocks / plan.chunks;
  const int64_t lo = range * plan.split.range_rows, hi = min(plan.split.rows, lo + plan.split.range_rows);
  const int width = given.x.width, slots = row_count(given.rows);
  const int own_width = min(kWidth, width - own * kWidth), count = min(kTileRows, slots - slot0);
  const auto* x = static_cast<const E*>(given.x.data);

  // This thread's two rows of the scores, and its warp's tokens of a tile.
  const int t = lane_index() & 3;
  const int row0 = first_score_row() + (lane_index() >> 2);
  const int row_of_half[2] = {row0, row0 + 8};
  constexpr int kTokens = kTileRows / Warps::kSides;
  const int token0 = kTokens * score_side();
  bool linear[2];
  for (int half = 0; half < 2; ++half) {
    linear[half] = slot0 + row_of_half[half] >= slots - given.rows.linear;
  }

  BlockAccumulators<Math, kWidth> acc;
  for_each_segment(given.bounds, lo, hi, [&](const Segment& segment) {
    const int64_t length = segment.end - segment.begin;
    const float inverse_length = 1.0f / static_cast<float>(length);
    float bias[2], largest[2], sum[2], dropped_sum[2];
    for (int half = 0; half < 2; ++half) {
      const int slot = slot0 + row_of_half[half];
      bias[half] = slot < slots ? score_bias(given.rows, segment.sequence, slot) : 0.0f;
      largest[half] = -INFINITY;
      sum[half] = dropped_sum[half] = 0.0f;
    }

    // The chunk of the width at a position: the block's own is the last.
    const auto chunk_at = [&](int position) { return (own + 1 + position) % plan.chunks; };
    const auto load = [&](int stage, int64_t first, int position) {
      const int chunk = chunk_at(position), chunk_width = min(kWidth, width - chunk * kWidth);
      if (plan.chunks > 1 || first == segment.first) {
        load_tile<Math, kTileRows, kWidth, Warps::kThreads>(
            memory.rows(stage), score_rows<E>(given.rows, width, segment.sequence, slot0, count, chunk * kWidth),
            chunk_width, plan.rows_aligned);
      }
      const StridedRows<E> tokens{.row = x + first * given.x.stride + chunk * kWidth,
                                  .stride = given.x.stride,
                                  .after = static_cast<int>(min(segment.after - first, int64_t{kTileRows}))};
      load_tile<Math, kTileRows, kWidth, Warps::kThreads>(memory.x(stage), tokens, chunk_width, plan.x_aligned);
    };

    clear(acc.values);
    float scores[1][kTokens / 8][4];
    const auto use = [&](int stage, int64_t first, int position) {
      const bool chunk_is_last = position == plan.chunks - 1;
      if (chunk_is_last && plan.dropping.rng != nullptr) {
        memory.keep->draw(plan.dropping, kCompressSite, segment.sequence, first - segment.begin,
                          [&](int r) { return r < count ? slot0 + r : -1; });
      }
      __syncthreads();
      if (position == 0) {
        clear(scores);
      }
      Math::template product<1, kTokens / 16, Contiguous::depth, Contiguous::depth>(
          scores, memory.rows(stage) + first_score_row() * kStride, kStride, memory.x(stage) + token0 * kStride,
          kStride, 16, kTokens / 16, padded(min(kWidth, width - chunk_at(position) * kWidth)));
      if (chunk_is_last) {
        const int valid = static_cast<int>(min(segment.after - first, static_cast<int64_t>(kTileRows)));
        bool rescale = false;
        float of_row[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float top = -INFINITY;
#pragma unroll
          for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              float& score = scores[0][n][2 * half + e];
              score = token0 + 8 * n + 2 * t + e < valid ? score + bias[half] : -INFINITY;
              top = fmaxf(top, score);
            }
          }
          of_row[half] = max_of_quad(top);
        }
        memory.combine_sides(of_row, row_of_half, Memory::kLargest, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = row_of_half[half];
          const float top = fmaxf(largest[half], of_row[half]);
          const float shift = top == -INFINITY ? 0.0f : top;
          const float factor = linear[half] ? 1.0f : Math::exponential(largest[half] - shift);
          largest[half] = top;
          float of_tile = 0.0f, dropped_of_tile = 0.0f;  // by themselves: sums of sums round less than long ones
          rescale = rescale || factor != 1.0f;
          if (t == 0 && token0 == 0) {
            memory.factor[row] = factor;
          }
#pragma unroll
          for (int n = 0; n < kTokens / 8; ++n) {
            float weight[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int token = token0 + 8 * n + 2 * t + e;
              const float score = scores[0][n][2 * half + e];
              weight[e] = !linear[half]   ? Math::exponential(score - shift)
                          : token < valid ? score * inverse_length
                                          : 0.0f;
              of_tile += weight[e];
              if (plan.dropping.rng != nullptr) {
                weight[e] = memory.keep->kept(row, token) ? weight[e] * plan.dropping.scale : 0.0f;
              }
              dropped_of_tile += weight[e];
            }
            store_pair(memory.weights + row * kWeightStride + token0 + 8 * n + 2 * t, weight[0], weight[1]);
          }
          sum[half] = sum[half] * factor + of_tile;
          dropped_sum[half] = dropped_sum[half] * factor + dropped_of_tile;
        }
        if (__syncthreads_or(rescale)) {
          acc.scale_rows(memory.factor);
        }
        acc.template add_product<Contiguous::depth>(memory.weights, kWeightStride, memory.x(stage), own_width,
                                                    padded(valid));
      }
    };
    pipeline(plan.stages, segment.first, segment.after, kTileRows, plan.chunks, load, use);

    const int64_t place = place_of(segment, range);
    const auto add = [](float a, float b) { return a + b; };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] = sum_of_quad(sum[half]);
      dropped_sum[half] = sum_of_quad(dropped_sum[half]);
    }
    memory.combine_sides(sum, row_of_half, Memory::kSum, add);
    memory.combine_sides(dropped_sum, row_of_half, Memory::kDroppedSum, add);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int slot = slot0 + row_of_half[half];
      const float divisor = linear[half] || sum[half] == 0.0f ? 1.0f : sum[half];
      if (t == 0 && token0 == 0) {
        memory.factor[row_of_half[half]] = 1.0f / divisor;
        if (slot < slots && place >= 0) {
          float* statistics = plan.partials.statistics + ((place * plan.chunks + own) * slots + slot) * 3;
          statistics[0] = largest[half], statistics[1] = sum[half], statistics[2] = dropped_sum[half];
        } else if (slot < slots && own == 0) {
          given.out.r[segment.sequence * slots + slot] = dropped_sum[half] / divisor;
          given.out.lse[segment.sequence * slots + slot] =
              linear[half] ? logf(static_cast<float>(length)) : largest[half] + logf(sum[half]);
        }
      }
    }
    __syncthreads();
    if (place < 0) {
      acc.scale_rows(memory.factor);
    }
    float* c = (place < 0 ? given.out.c + segment.sequence * slots * width : plan.partials.c + place * slots * width) +
               own * kWidth;
    acc.write_rows([&](int r) { return r < count ? c + static_cast<int64_t>(slot0 + r) * width : nullptr; }, own_width,
                   width % 2 == 0);
    __syncthreads();
  });
}

}  // namespace

size_t compress_workspace(const CompressArguments& arguments) {
  Scratch scratch(nullptr);
  plan_compress(arguments, scratch);
  return scratch.used();
}

cudaError_t compress(const CompressArguments& arguments, cudaStream_t stream) {
  if (arguments.bounds.count == 0 || row_count(arguments.rows) == 0) {
    return cudaSuccess;
  }
  Scratch scratch(arguments.workspace);
  CompressPlan plan = plan_compress(arguments, scratch);
  const auto launch = [&](auto math, auto width) {
    using Math = decltype(math);
    constexpr int kWidth = decltype(width)::value;
    using Memory = CompressMemory<Math, kWidth>;
    static_assert(BlockWarps<typename Math::Element, kWidth>::kSides == 1 || Memory::bytes(2, 1) <= kRoomForEightWarps);
    plan.stages = stages_for(Memory::bytes(1, plan.chunks), Memory::bytes(2, plan.chunks));
    return launch_kernel(compress_kernel<Math, kWidth>,
                         static_cast<int64_t>(plan.split.ranges) * plan.blocks * plan.chunks,
                         BlockWarps<typename Math::Element, kWidth>::kThreads, Memory::bytes(plan.stages, plan.chunks),
                         stream, arguments, plan);
  };
  const auto status = with_doubled_tile(arguments.element, arguments.tf32, arguments.x.width, launch);
  if (status != cudaSuccess) {
    return status;
  }
  return merge_summaries(arguments, plan.split, plan.chunks, doubled_tile_width(arguments.element, arguments.x.width),
                         plan.partials, stream);
}

}  // namespace dba::ops::cuda::general

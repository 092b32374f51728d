#include "ops/cuda/general.h"
#include "ops/cuda/general_scores.cuh"

namespace dba::ops::cuda::general {
namespace {

struct RestorePlan {
  HeadBlocks heads;
  int chunks = 0;  // of the output's width
  bool x_aligned = false, rows_aligned = false, m_aligned = false, y_aligned = false;
  Dropping dropping;
};

template <class Math, int kWidth>
struct RestoreMemory {
  using E = typename Math::Element;
  static constexpr int kSides = BlockWarps<E, kWidth>::kSides;
  using Scores = ScoreStream<Math, kSides>;
  static constexpr int kColumns = Scores::kColumns;
  static constexpr int kWeightStride = row_stride<E>(kColumns);
  static_assert(kTileRows * kWeightStride <= Scores::kElements);

  alignas(16) E stream[Scores::kElements];  // and the weights, once the scores are made
  E mix[kColumns * row_stride<E>(kWidth)];  // rows of M, and at a sequence's end its rows of Y
  ScoreColumns<kSides> columns;
  KeepBits<kTileRows, kColumns> keep;
};

/// A block: 64 rows and one chunk of Y's columns; each of its sides has a unit of heads at a time. Sequences that share
/// the rows come one after the other, and each takes its own rows away: in those of others its M is multiplied by 0,
/// and 0 · NaN is not 0.
template <class Math, int kWidth>
__global__ void __launch_bounds__(BlockWarps<typename Math::Element, kWidth>::kThreads,
                                  BlockWarps<typename Math::Element, kWidth>::kResident)
    restore_kernel(RestoreArguments given, RestorePlan plan) {
  using E = typename Math::Element;
  using Warps = BlockWarps<E, kWidth>;
  extern __shared__ __align__(16) char shared[];
  using Memory = RestoreMemory<Math, kWidth>;
  auto& memory = *reinterpret_cast<Memory*>(shared);
  const typename Memory::Scores stream{memory.stream};
  E* weights = memory.stream;

  const int own = static_cast<int>(blockIdx.x) % plan.chunks;
  const int64_t lo = static_cast<int64_t>(blockIdx.x) / plan.chunks * kTileRows;
  const int64_t hi = min(given.x.rows, lo + kTileRows);
  const int width = given.x.width, slots = row_count(given.rows);
  const int own_width = min(kWidth, given.out_width - own * kWidth);
  const int octets = plan.heads.columns / 8;
  const auto* x = static_cast<const E*>(given.x.data);
  const int t = lane_index() & 3;
  const int row0 = first_score_row() + (lane_index() >> 2);
  const int column0 = kBlockColumns * score_side() + 2 * t;

  BlockAccumulators<Math, kWidth> acc;
  int written = 0;
  // Rows `written` … after − 1 of Y; those before `first` belong to nobody.
  const auto write = [&](int first, int after) {
    store_tile<E, kWidth>(static_cast<E*>(given.y) + lo * given.out_width + own * kWidth, given.out_width, memory.mix,
                          written, first, after, own_width, plan.y_aligned);
    written = after;
  };
  for_each_segment(given.bounds, lo, hi, [&](const Segment& segment) {
    const auto first = static_cast<int>(segment.first - lo), after = static_cast<int>(segment.after - lo);
    const auto inside = [&](int r) { return r >= first && r < after; };
    clear(acc.values);
    const StridedRows<E> tokens{
        .row = x + lo * given.x.stride, .stride = given.x.stride, .first = first, .after = after};
    const E* rows = score_row<E>(given.rows, width, segment.sequence, 0);
    const auto slot_of = [&](int r) -> const E* {
      const int slot = memory.columns.slot[r];
      return slot < 0 ? nullptr : rows + static_cast<int64_t>(slot) * width;
    };
    const E* m = static_cast<const E*>(given.m) + segment.sequence * slots * given.out_width + own * kWidth;
    const auto mix_of = [&](int r) -> const E* {
      const int slot = memory.columns.slot[r];
      return slot < 0 ? nullptr : m + static_cast<int64_t>(slot) * given.out_width;
    };
    float scores[1][8][4];
    // The biased scores of one block of columns; the barriers within also free what the block before used.
    const auto compute_scores = [&](int unit, int block, bool with_weights) {
      __syncthreads();
      memory.columns.fill(plan.heads, unit, block, given.rows, segment.sequence, given.linear);
      __syncthreads();
      stream.begin(width, tokens, plan.x_aligned, slot_of, plan.rows_aligned);
      if (with_weights) {
        load_tile<Math, Memory::kColumns, kWidth, Warps::kThreads>(memory.mix, ScatteredRows(mix_of), own_width,
                                                                   plan.m_aligned);
        if (plan.dropping.rng != nullptr) {
          memory.keep.draw(plan.dropping, kRestoreSite, segment.sequence, segment.first - segment.begin,
                           [&](int column) { return memory.columns.slot[column]; });
        }
      }
      stream.sum(scores, width, tokens, plan.x_aligned, slot_of, plan.rows_aligned);
      await_copies<0>();
      if (with_weights) {
        __syncthreads();  // the weights take the place of the last tiles
      }
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores[0][n][i] += memory.columns.bias[column0 + 8 * n + i % 2];
        }
      }
    };

    for (int unit = 0; unit < plan.heads.units; unit += Warps::kSides) {
      using Softmax = HeadSoftmax<Math, false>;
      typename Softmax::Carried carried[2];
      const int blocks = plan.heads.blocks_per_head, steps = blocks * plan.heads.passes(given.linear);
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        const bool last_pass = step >= steps - blocks;
        compute_scores(unit, step % blocks, last_pass);
        Softmax softmax[2] = {Softmax(carried[0]), Softmax(carried[1])};
        if (!given.linear && step < blocks) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            softmax[half].add(
                octets, [&](int n, int e) { return scores[0][n][2 * half + e]; }, [](int, int) { return 0.0f; });
          }
          if (step == blocks - 1) {
            softmax[0].finish();
            softmax[1].finish();
          }
          carried[0] = softmax[0].carried();
          carried[1] = softmax[1].carried();
        }
        if (!last_pass) {
          continue;
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = row0 + 8 * half;
#pragma unroll
          for (int n = 0; n < 8; ++n) {
            float weight[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const float score = scores[0][n][2 * half + e];
              weight[e] = given.linear ? score : softmax[half].exponential(score, n) * softmax[half].sum[n];
              if (!inside(row)) {
                weight[e] = 0.0f;
              } else if (plan.dropping.rng != nullptr) {
                weight[e] = memory.keep.kept(column0 + 8 * n + e, row - first) ? weight[e] * plan.dropping.scale : 0.0f;
              }
            }
            store_pair(weights + row * Memory::kWeightStride + column0 + 8 * n, weight[0], weight[1]);
          }
        }
        __syncthreads();
        acc.template add_product<Contiguous::depth>(weights, Memory::kWeightStride, memory.mix, own_width,
                                                    Memory::kColumns);
      }
    }
    __syncthreads();
    acc.for_each_pair(own_width, [&](int row, int column, float left, float right) {
      if (!inside(row)) {
        return;
      }
      if (given.out_bias != nullptr) {
        const float* bias = given.out_bias + own * kWidth + column;
        left += bias[0];
        right += column + 1 < own_width ? bias[1] : 0.0f;
      }
      store_pair(memory.mix + row * row_stride<E>(kWidth) + column, left, right);
    });
    __syncthreads();
    write(first, after);
  });
  write(static_cast<int>(hi - lo), static_cast<int>(hi - lo));
}

}  // namespace

cudaError_t restore(const RestoreArguments& arguments, cudaStream_t stream) {
  const size_t size = element_bytes(arguments.element);
  RestorePlan plan;
  plan.heads = HeadBlocks(row_count(arguments.rows), arguments.heads);
  plan.chunks = chunks_of(arguments.out_width, doubled_tile_width(arguments.element, arguments.out_width));
  plan.x_aligned = aligned_rows(arguments.x.data, arguments.x.stride, size);
  plan.rows_aligned = aligned_rows(arguments.rows, arguments.x.width, size);
  plan.m_aligned = aligned_rows(arguments.m, arguments.out_width, size);
  plan.y_aligned = aligned_rows(arguments.y, arguments.out_width, size);
  plan.dropping = dropping(arguments.dropout);
  return with_doubled_tile(arguments.element, arguments.tf32, arguments.out_width, [&](auto math, auto width) {
    using Math = decltype(math);
    constexpr int kWidth = decltype(width)::value;
    using Memory = RestoreMemory<Math, kWidth>;
    static_assert(Memory::kSides == 1 || sizeof(Memory) <= kRoomForEightWarps);
    return launch_kernel(restore_kernel<Math, kWidth>, (arguments.x.rows + kTileRows - 1) / kTileRows * plan.chunks,
                         BlockWarps<typename Math::Element, kWidth>::kThreads, static_cast<int>(sizeof(Memory)), stream,
                         arguments, plan);
  });
}

}  // namespace dba::ops::cuda::general

#include "ops/cuda/general.h"
#include "ops/cuda/general_scores.cuh"
#include "ops/cuda/general_token_sums.h"

namespace dba::ops::cuda::general {
namespace {

struct RestoreBackwardPlan {
  HeadBlocks heads;
  int splits = 0;           // blocks that share a tile's units
  void* weights = nullptr;  // (N, S) elements, after dropout: dM is made of them; not written in rows of nobody
  bool x_aligned = false, rows_aligned = false, dy_aligned = false, m_aligned = false, dscores_aligned = false;
  Dropping dropping;
  TokenSumsPlan of_m, of_rows;
};

template <class Math>
struct RestoreBackwardMemory {
  using E = typename Math::Element;
  static constexpr int kStride = row_stride<E>(kBlockColumns);

  alignas(16) E stream[ScoreStream<Math>::kElements];
  E weights[kTileRows * kStride];
  E dscores[kTileRows * kStride];
  ScoreColumns<> columns;
  KeepBits<kTileRows, kBlockColumns> keep;
  bool owned[kTileRows];
};

/// A block: 64 rows and a share of the heads. Writes the weights and the gradient of the scores.
template <class Math>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    restore_scores_kernel(RestoreBackwardArguments given, RestoreBackwardPlan plan) {
  using E = typename Math::Element;
  using Memory = RestoreBackwardMemory<Math>;
  extern __shared__ __align__(16) char shared[];
  auto& memory = *reinterpret_cast<Memory*>(shared);
  const ScoreStream<Math> stream{memory.stream};
  const RestoreArguments& forward = given.forward;

  const int split = static_cast<int>(blockIdx.x) % plan.splits;
  const int64_t lo = static_cast<int64_t>(blockIdx.x) / plan.splits * kTileRows;
  const int64_t hi = min(forward.x.rows, lo + kTileRows);
  const int width = forward.x.width, out_width = forward.out_width, slots = row_count(forward.rows);
  const int octets = plan.heads.columns / 8;
  const auto* x = static_cast<const E*>(forward.x.data);
  const auto* dy = static_cast<const E*>(given.dy.data);
  auto* weights = static_cast<E*>(plan.weights);
  auto* dscores = static_cast<E*>(given.dscores);
  const int t = lane_index() & 3;
  const int row0 = 16 * warp_index() + (lane_index() >> 2);

  if (threadIdx.x < kTileRows) {
    memory.owned[threadIdx.x] = false;
  }
  __syncthreads();
  for_each_segment(forward.bounds, lo, hi, [&](const Segment& segment) {
    const auto first = static_cast<int>(segment.first - lo), after = static_cast<int>(segment.after - lo);
    const auto inside = [&](int r) { return r >= first && r < after; };
    if (threadIdx.x < kTileRows && inside(static_cast<int>(threadIdx.x))) {
      memory.owned[threadIdx.x] = true;
    }
    const StridedRows<E> tokens{
        .row = x + lo * forward.x.stride, .stride = forward.x.stride, .first = first, .after = after};
    const StridedRows<E> gradients{
        .row = dy + lo * given.dy.stride, .stride = given.dy.stride, .first = first, .after = after};
    const E* rows = score_row<E>(forward.rows, width, segment.sequence, 0);
    const auto slot_of = [&](int r) -> const E* {
      const int slot = memory.columns.slot[r];
      return slot < 0 ? nullptr : rows + static_cast<int64_t>(slot) * width;
    };
    const E* m = static_cast<const E*>(forward.m) + segment.sequence * slots * out_width;
    const auto mix_of = [&](int r) -> const E* {
      const int slot = memory.columns.slot[r];
      return slot < 0 ? nullptr : m + static_cast<int64_t>(slot) * out_width;
    };
    float scores[1][8][4], dweights[1][8][4];
    // One block of columns: the biased scores, and m̃ ∘ (dY Mᵀ).
    const auto compute = [&](int unit, int block) {
      __syncthreads();
      memory.columns.fill(plan.heads, unit, block, forward.rows, segment.sequence, forward.linear);
      __syncthreads();
      stream.begin(width, tokens, plan.x_aligned, slot_of, plan.rows_aligned);
      if (plan.dropping.rng != nullptr) {
        memory.keep.draw(plan.dropping, kRestoreSite, segment.sequence, segment.first - segment.begin,
                         [&](int column) { return memory.columns.slot[column]; });
      }
      stream.sum(scores, width, tokens, plan.x_aligned, slot_of, plan.rows_aligned);
      __syncthreads();
      stream.begin(out_width, gradients, plan.dy_aligned, mix_of, plan.m_aligned);
      stream.sum(dweights, out_width, gradients, plan.dy_aligned, mix_of, plan.m_aligned);
      await_copies<0>();
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = 8 * n + 2 * t + i % 2, row = row0 + 8 * (i / 2);
          scores[0][n][i] += memory.columns.bias[column];
          if (plan.dropping.rng != nullptr && inside(row)) {
            dweights[0][n][i] = memory.keep.kept(column, row - first) ? dweights[0][n][i] * plan.dropping.scale : 0.0f;
          }
        }
      }
    };

    const int blocks = plan.heads.blocks_per_head, steps = blocks * plan.heads.passes(forward.linear);
    for (int unit = split; unit < plan.heads.units; unit += plan.splits) {
      using Softmax = HeadSoftmax<Math, true>;
      typename Softmax::Carried carried[2];
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        compute(unit, step % blocks);
        Softmax softmax[2] = {Softmax(carried[0]), Softmax(carried[1])};
        if (!forward.linear && step < blocks) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            softmax[half].add(
                octets, [&](int n, int e) { return scores[0][n][2 * half + e]; },
                [&](int n, int e) { return dweights[0][n][2 * half + e]; });
          }
          if (step == blocks - 1) {
            softmax[0].finish();
            softmax[1].finish();
          }
          carried[0] = softmax[0].carried();
          carried[1] = softmax[1].carried();
        }
        if (step < steps - blocks) {
          continue;
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = row0 + 8 * half;
#pragma unroll
          for (int n = 0; n < 8; ++n) {
            float weight[2], dscore[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const float score = scores[0][n][2 * half + e], dweight = dweights[0][n][2 * half + e];
              weight[e] = forward.linear ? score : softmax[half].exponential(score, n) * softmax[half].sum[n];
              dscore[e] = forward.linear ? dweight : weight[e] * (dweight - softmax[half].gradient[n]);
              if (plan.dropping.rng != nullptr && inside(row)) {
                weight[e] = memory.keep.kept(8 * n + 2 * t + e, row - first) ? weight[e] * plan.dropping.scale : 0.0f;
              }
            }
            const int at = row * Memory::kStride + 8 * n + 2 * t;
            store_pair(memory.weights + at, weight[0], weight[1]);
            store_pair(memory.dscores + at, dscore[0], dscore[1]);
          }
        }
        __syncthreads();
        constexpr int kEntries = kPieceEntries<E>;
        constexpr int kPieces = kBlockColumns / kEntries;
        for (int i = first * kPieces + static_cast<int>(threadIdx.x); i < after * kPieces; i += kThreads) {
          const int row = i / kPieces, column = i % kPieces * kEntries;
          const int* slot = memory.columns.slot + column;
          const int from = row * Memory::kStride + column;
          const int64_t to = (lo + row) * slots;
          if (plan.dscores_aligned && slot[0] >= 0 && slot[0] % kEntries == 0 &&
              slot[kEntries - 1] == slot[0] + kEntries - 1) {
            *reinterpret_cast<uint4*>(weights + to + slot[0]) = *reinterpret_cast<const uint4*>(memory.weights + from);
            *reinterpret_cast<uint4*>(dscores + to + slot[0]) = *reinterpret_cast<const uint4*>(memory.dscores + from);
          } else {
            for (int j = 0; j < kEntries; ++j) {
              if (slot[j] >= 0) {
                weights[to + slot[j]] = memory.weights[from + j];
                dscores[to + slot[j]] = memory.dscores[from + j];
              }
            }
          }
        }
      }
    }
  });
  if (split == 0) {
    __syncthreads();
    for (int row = 0; row < static_cast<int>(hi - lo); ++row) {
      if (!memory.owned[row]) {
        for (int slot = static_cast<int>(threadIdx.x); slot < slots; slot += kThreads) {
          dscores[(lo + row) * slots + slot] = Math::round(0.0f);
        }
      }
    }
  }
}

TokenSums sums_of_m(const RestoreBackwardArguments& given, const void* weights) {
  const int slots = row_count(given.forward.rows);
  TokenSums sums{given.forward.element, given.forward.tf32, given.forward.bounds, {}, given.dy};
  sums.weights = {weights, given.forward.x.rows, slots, slots};
  sums.values.rows = given.forward.x.rows;
  sums.values.width = given.forward.out_width;
  sums.each = true;
  sums.sums = given.dm;
  sums.value_sums = given.dout_bias.floats();
  return sums;
}

TokenSums sums_of_rows(const RestoreBackwardArguments& given) {
  TokenSums sums = sums_of_m(given, given.dscores);
  sums.values = given.forward.x;
  sums.each = given.forward.rows.each_rows > 0;
  sums.sums = given.drows.floats();
  sums.weight_sums = given.dbias.floats();
  sums.value_sums = nullptr;
  return sums;
}

RestoreBackwardPlan plan_restore_backward(const RestoreBackwardArguments& given, Scratch& scratch) {
  const RestoreArguments& forward = given.forward;
  const size_t size = element_bytes(forward.element);
  const int slots = row_count(forward.rows);
  RestoreBackwardPlan plan;
  plan.heads = HeadBlocks(slots, forward.heads);
  const int64_t tiles = std::max<int64_t>((forward.x.rows + kTileRows - 1) / kTileRows, 1);
  plan.splits = static_cast<int>(std::clamp<int64_t>(2 * multiprocessors() / tiles, 1, plan.heads.units));
  plan.weights = scratch.take<char>(forward.x.rows * slots * static_cast<int64_t>(size));
  plan.x_aligned = aligned_rows(forward.x.data, forward.x.stride, size);
  plan.rows_aligned = aligned_rows(forward.rows, forward.x.width, size);
  plan.dy_aligned = aligned_rows(given.dy.data, given.dy.stride, size);
  plan.m_aligned = aligned_rows(forward.m, forward.out_width, size);
  plan.dscores_aligned = aligned_rows(given.dscores, slots, size);
  plan.dropping = dropping(forward.dropout);
  plan.of_m = plan_token_sums(sums_of_m(given, plan.weights), scratch);
  plan.of_rows = plan_token_sums(sums_of_rows(given), scratch);
  return plan;
}

cudaError_t write_scores(const RestoreBackwardArguments& given, const RestoreBackwardPlan& plan, cudaStream_t stream) {
  const auto launch = [&](auto math) {
    using Math = decltype(math);
    return launch_kernel(restore_scores_kernel<Math>, (given.forward.x.rows + kTileRows - 1) / kTileRows * plan.splits,
                         kThreads, static_cast<int>(sizeof(RestoreBackwardMemory<Math>)), stream, given, plan);
  };
  switch (given.forward.element) {
    case Element::float16:
      return launch(Float16{});
    case Element::bfloat16:
      return launch(Bfloat16{});
    default:
      return given.forward.tf32 ? launch(TensorFloat32{}) : launch(Float32{});
  }
}

}  // namespace

size_t restore_backward_workspace(const RestoreBackwardArguments& arguments) {
  Scratch scratch(nullptr);
  plan_restore_backward(arguments, scratch);
  return scratch.used();
}

cudaError_t restore_backward(const RestoreBackwardArguments& arguments, cudaStream_t stream) {
  Scratch scratch(arguments.workspace);
  const RestoreBackwardPlan plan = plan_restore_backward(arguments, scratch);
  auto status = write_scores(arguments, plan, stream);
  if (status == cudaSuccess) {
    status = add_tokens(sums_of_m(arguments, plan.weights), plan.of_m, stream);
  }
  if (status == cudaSuccess) {
    status = add_tokens(sums_of_rows(arguments), plan.of_rows, stream);
  }
  return status;
}

}  // namespace dba::ops::cuda::general

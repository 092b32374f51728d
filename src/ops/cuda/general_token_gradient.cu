#include "ops/cuda/general_pipeline.cuh"
#include "ops/cuda/general_slot_terms.cuh"

namespace dba::ops::cuda::general {
namespace {

constexpr int kSlots = 32;  // in a step: more would leave no room for a second block beside X, A and dC

/// Shared memory: tiles of X, one for good where the width is one chunk, else a stage each; per stage 32 rows of A and
/// of dC; weights and gradients of the scores (64 tokens, 32 slots).
template <class Math, int kWidth>
struct TokenGradientMemory {
  using E = typename Math::Element;
  static constexpr int kX = kTileRows * row_stride<E>(kWidth);
  static constexpr int kRows = kSlots * row_stride<E>(kWidth);
  static constexpr int kWeightStride = row_stride<E>(kSlots);
  static constexpr int kWeights = kTileRows * kWeightStride;
  struct Small {
    SlotTerms terms[kSlots];
    KeepBits<kTileRows, kSlots> keep;
  };

  E* tiles;
  E* weights;
  E* dscores;
  Small* small;
  int stages, chunks;

  __device__ TokenGradientMemory(char* memory, int stages, int chunks) : stages(stages), chunks(chunks) {
    tiles = reinterpret_cast<E*>(memory);
    weights = tiles + (chunks > 1 ? stages : 1) * kX + stages * 2 * kRows;
    dscores = weights + kWeights;
    small = reinterpret_cast<Small*>(dscores + kWeights);
  }
  __device__ E* x(int stage) const {
    return tiles + (chunks > 1 ? stage : 0) * kX;
  }
  __device__ E* rows(int stage) const {
    return tiles + (chunks > 1 ? stages : 1) * kX + stage * 2 * kRows;
  }
  __device__ E* dc(int stage) const {
    return rows(stage) + kRows;
  }
  static constexpr int bytes(int stages, int chunks) {
    return static_cast<int>(((chunks > 1 ? stages : 1) * kX + stages * 2 * kRows + 2 * kWeights) * sizeof(E) +
                            sizeof(Small));
  }
};

/// A block: 64 rows and one chunk of dX's columns. Scores are summed over all chunks, the block's own last, whose rows
/// of A and dC then serve dX += W̃ dC + dS A. Sequences that share the rows come one after the other, and each takes
/// its own rows away: in those of others its A and dC are multiplied by 0, and 0 · NaN is not 0.
template <class Math, int kWidth>
__global__ void __launch_bounds__(BlockWarps<typename Math::Element, kWidth>::kThreads,
                                  BlockWarps<typename Math::Element, kWidth>::kResident)
    token_gradient_kernel(CompressBackwardArguments given, CompressBackwardPlan plan, int stages) {
  using E = typename Math::Element;
  using Warps = BlockWarps<E, kWidth>;
  using Memory = TokenGradientMemory<Math, kWidth>;
  extern __shared__ __align__(16) char shared[];
  const Memory memory(shared, stages, plan.chunks);
  constexpr int kStride = row_stride<E>(kWidth);
  const CompressArguments& forward = given.forward;

  const int own = static_cast<int>(blockIdx.x) % plan.chunks;
  const int64_t lo = static_cast<int64_t>(blockIdx.x) / plan.chunks * kTileRows;
  const int64_t hi = min(forward.x.rows, lo + kTileRows);
  const int width = forward.x.width, slots = row_count(forward.rows);
  const int own_width = min(kWidth, width - own * kWidth);
  const auto* x = static_cast<const E*>(forward.x.data);
  const int t = lane_index() & 3;
  // This thread's first row of the scores, and its warp's slots of a step.
  const int row0 = first_score_row() + (lane_index() >> 2);
  constexpr int kWarpSlots = kSlots / Warps::kSides;
  const int warp_slot0 = kWarpSlots * score_side();

  BlockAccumulators<Math, kWidth> acc;
  const auto add_products = [&](int stage, int depth_of_weights, int depth_of_dscores) {
    acc.template add_product<Contiguous::depth>(memory.weights, Memory::kWeightStride, memory.dc(stage), own_width,
                                                depth_of_weights);
    acc.template add_product<Contiguous::depth>(memory.dscores, Memory::kWeightStride, memory.rows(stage), own_width,
                                                depth_of_dscores);
  };
  E* out = memory.x(0);
  int written = 0;
  // Rows `written` … after − 1 of dX; those before `first` belong to nobody.
  const auto write = [&](int first, int after) {
    store_tile<E, kWidth>(static_cast<E*>(given.dx) + lo * width + own * kWidth, width, out, written, first, after,
                          own_width, plan.dx_aligned);
    written = after;
  };
  for_each_segment(forward.bounds, lo, hi, [&](const Segment& segment) {
    const auto first = static_cast<int>(segment.first - lo), after = static_cast<int>(segment.after - lo);
    const auto inside = [&](int r) { return r >= first && r < after; };
    const float inverse_length = 1.0f / static_cast<float>(segment.end - segment.begin);
    clear(acc.values);
    // The chunk of the width at a position: the block's own is the last.
    const auto chunk_at = [&](int position) { return (own + 1 + position) % plan.chunks; };
    const auto load = [&](int stage, int64_t at, int position) {
      const auto slot0 = static_cast<int>(at);
      const int chunk = chunk_at(position), chunk_width = min(kWidth, width - chunk * kWidth);
      const int count = min(kSlots, slots - slot0);
      if (plan.chunks > 1 || slot0 == 0) {
        const StridedRows<E> tokens{.row = x + lo * forward.x.stride + chunk * kWidth,
                                    .stride = forward.x.stride,
                                    .first = first,
                                    .after = after};
        load_tile<Math, kTileRows, kWidth, Warps::kThreads>(memory.x(stage), tokens, chunk_width, plan.x_aligned);
      }
      load_tile<Math, kSlots, kWidth, Warps::kThreads>(
          memory.rows(stage), score_rows<E>(forward.rows, width, segment.sequence, slot0, count, chunk * kWidth),
          chunk_width, plan.rows_aligned);
      const StridedRows<E> dc{
          .row = static_cast<const E*>(plan.dc) + (segment.sequence * slots + slot0) * width + chunk * kWidth,
          .stride = width,
          .after = count};
      load_tile<Math, kSlots, kWidth, Warps::kThreads>(memory.dc(stage), dc, chunk_width, plan.dc_aligned);
    };

    // [0][n]: the products with A of eight slots, and behind those of all the warp's slots the products with dC, whose
    // tile lies behind that of A: both share the tokens' fragments.
    constexpr int kOctets = kWarpSlots / 8;
    float products[1][2 * kOctets][4];
    const auto use = [&](int stage, int64_t at, int position) {
      const auto slot0 = static_cast<int>(at);
      const bool chunk_is_last = position == plan.chunks - 1;
      if (chunk_is_last) {
        if (threadIdx.x < kSlots) {
          memory.small->terms[threadIdx.x] =
              SlotTerms::of(given, plan.reduction, segment.sequence, slot0 + static_cast<int>(threadIdx.x));
        }
        if (plan.dropping.rng != nullptr) {
          memory.small->keep.draw(plan.dropping, kCompressSite, segment.sequence, segment.first - segment.begin,
                                  [&](int r) { return slot0 + r < slots ? slot0 + r : -1; });
        }
      }
      __syncthreads();
      if (position == 0) {
        clear(products);
      }
      const int depth = padded(min(kWidth, width - chunk_at(position) * kWidth));
      Math::template product<1, kOctets, Contiguous::depth, Contiguous::depth>(
          products, memory.x(stage) + first_score_row() * kStride, kStride, memory.rows(stage) + warp_slot0 * kStride,
          kStride, 16 * Warps::kSides, kOctets, depth);
      if (chunk_is_last) {
#pragma unroll
        for (int n = 0; n < kOctets; ++n) {
          const int slot = warp_slot0 + 8 * n + 2 * t;
          const SlotTerms terms[2] = {memory.small->terms[slot], memory.small->terms[slot + 1]};
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = row0 + 8 * half;
            SlotTerms::Gradients result[2] = {};
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              if (inside(row)) {
                float mask = 1.0f;
                if (plan.dropping.rng != nullptr) {
                  mask = memory.small->keep.kept(slot + e, row - first) ? plan.dropping.scale : 0.0f;
                }
                result[e] = terms[e].template at<Math>(products[0][n][2 * half + e],
                                                       products[0][kOctets + n][2 * half + e], mask, inverse_length);
              }
            }
            const int at = row * Memory::kWeightStride + slot;
            store_pair(memory.weights + at, result[0].weight, result[1].weight);
            store_pair(memory.dscores + at, result[0].dscore, result[1].dscore);
          }
        }
        __syncthreads();
        add_products(stage, kSlots, kSlots);
      }
    };
    pipeline(stages, 0, slots, kSlots, plan.chunks, load, use);

    // Restore's part: 64 slots a time, the first 32 in the place of W̃ and dC, the others in that of dS and A.
    const int restore_slots = given.dscores == nullptr ? 0 : row_count(given.restore_rows);
    for (int from = 0; from < restore_slots; from += 2 * kSlots) {
#pragma unroll 1
      for (int part = 0; part < 2; ++part) {
        const int begin = from + part * kSlots;
        const int count = max(0, min(kSlots, restore_slots - begin));
        load_tile<Math, kSlots, kWidth, Warps::kThreads>(
            part == 0 ? memory.dc(0) : memory.rows(0),
            score_rows<E>(given.restore_rows, width, segment.sequence, begin, count, own * kWidth), own_width,
            plan.restore_rows_aligned);
        const StridedRows<E> dscores{.row = static_cast<const E*>(given.dscores) + lo * restore_slots + begin,
                                     .stride = restore_slots,
                                     .first = first,
                                     .after = after};
        load_tile<Math, kTileRows, kSlots, Warps::kThreads>(part == 0 ? memory.weights : memory.dscores, dscores, count,
                                                            plan.dscores_aligned);
      }
      commit_copies();
      await_copies<0>();
      __syncthreads();
      add_products(0, padded(min(kSlots, restore_slots - from)),
                   padded(max(0, min(kSlots, restore_slots - from - kSlots))));
      __syncthreads();
    }
    acc.for_each_pair(own_width, [&](int row, int column, float left, float right) {
      if (inside(row)) {
        store_pair(out + row * kStride + column, left, right);
      }
    });
    __syncthreads();
    write(first, after);
    __syncthreads();
  });
  write(static_cast<int>(hi - lo), static_cast<int>(hi - lo));
}

}  // namespace

cudaError_t write_token_gradient(const CompressBackwardArguments& given, const CompressBackwardPlan& plan,
                                 cudaStream_t stream) {
  return with_doubled_tile(
      given.forward.element, given.forward.tf32, given.forward.x.width, [&](auto math, auto width) {
        using Math = decltype(math);
        constexpr int kWidth = decltype(width)::value;
        using Memory = TokenGradientMemory<Math, kWidth>;
        static_assert(BlockWarps<typename Math::Element, kWidth>::kSides == 1 ||
                      Memory::bytes(2, 1) <= kRoomForEightWarps);
        const int stages = stages_for(Memory::bytes(1, plan.chunks), Memory::bytes(2, plan.chunks));
        return launch_kernel(token_gradient_kernel<Math, kWidth>,
                             (given.forward.x.rows + kTileRows - 1) / kTileRows * plan.chunks,
                             BlockWarps<typename Math::Element, kWidth>::kThreads, Memory::bytes(stages, plan.chunks),
                             stream, given, plan, stages);
      });
}

}  // namespace dba::ops::cuda::general

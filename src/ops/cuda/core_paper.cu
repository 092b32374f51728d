#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "ops/cuda/core_paper.cuh"
#include "ops/cuda/kernel_row.cuh"

/// Form `paper` of `core` at the shape most layers have: weights of a half type, 16 slots, heads of 64 columns. A
/// thread block keeps one head's weights, those of the projections in registers, and goes through sequences. Twelve
/// warps project the summaries of one sequence, while those of the next two are on their way; two teams of four take
/// every other sequence from there and make M of it, each from a buffer of its own. Making M is a long chain of short
/// steps: two at a time fill each other's gaps.
namespace dba::ops::cuda {
namespace {

using namespace paper;

/// The sequences of a thread block: first, first + step, …
struct Share {
  int first = static_cast<int>(blockIdx.y);
  int step = static_cast<int>(gridDim.y);
  int count;
  __device__ explicit Share(int batch) : count((batch - first + step - 1) / step) {}
  __device__ int operator[](int item) const {
    return first + item * step;
  }
};

/// Asks for a head's weights ahead of time.
template <class T, int kDepth>
__device__ inline void expect_weights(const CorePaperArguments& given, int head) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kLiftThreads) {
    const T* const weight = static_cast<const T*>(given.lifted[thread / kTeamThreads].weight);
    expect_rows(weight + static_cast<int64_t>(head) * kHeadWidth * kDepth, kHeadWidth, kDepth, kDepth,
                thread % kTeamThreads, kTeamThreads);
  } else {
    expect_rows(static_cast<const T*>(given.out_weight) + head * kHeadWidth, given.out_width, kHeadWidth,
                static_cast<int64_t>(given.heads) * kHeadWidth, thread - kLiftThreads, kTeams * kTeamThreads);
  }
}

/// Starts the copies of a sequence's summaries and row sums; a head's rows of one group lie side by side.
template <int kDepth>
__device__ inline void fetch(const CorePaperArguments& given, Shared<kDepth>& shared, int stage, int64_t sequence,
                             int head) {
  constexpr int kQuads = kDepth / 4;
  constexpr int kRows = kTeamThreads / kQuads;  // that four warps copy at a time
  const int group = static_cast<int>(threadIdx.x) / kTeamThreads;
  const int thread = static_cast<int>(threadIdx.x) % kTeamThreads;
  const Lifted& from = given.lifted[group];
  const float* const source = from.source + sequence * from.sequence_stride + head * from.head_stride + 4 * thread;
  float* const to = shared.summaries[stage][group] + thread / kQuads * summary_stride(kDepth) + thread % kQuads * 4;
#pragma unroll
  for (int i = 0; i < kSlots / kRows; ++i) {
    copy_async<16>(to + i * kRows * summary_stride(kDepth), source + i * 4 * kTeamThreads);
  }
  if (thread < kSlots) {
    float* const sum = shared.sums[stage][group] + thread;
    if (from.sums != nullptr) {
      copy_async<4>(sum, from.sums + sequence * from.sums_sequence_stride + head * kSlots + thread);
    } else {
      *sum = 1.0f;
    }
  }
}

/// What a projecting warp does: 16 columns of queries, keys or values of one sequence after the other.
template <class T, int kDepth>
__device__ inline void lift_all(const CorePaperArguments& given, Shared<kDepth>& shared, const Share& share, int head) {
  constexpr int kBlocks = kDepth / 32;
  const Lane lane;
  const int group = static_cast<int>(threadIdx.x) / kTeamThreads;
  const int column = static_cast<int>(threadIdx.x) / 32 % 4 * 16;
  const Lifted& lifted = given.lifted[group];
  uint4 held[2 * kBlocks];
  const T* const weight = static_cast<const T*>(lifted.weight) +
                          static_cast<int64_t>(head * kHeadWidth + column + lane.row_of_pair()) * kDepth + 8 * lane.t;
  for (int item = 0; item < kStages - 1; ++item) {
    if (item < share.count) {
      fetch(given, shared, item, share[item], head);
    }
    commit_copies();
  }
#pragma unroll
  for (int i = 0; i < 2 * kBlocks; ++i) {
    held[i] = *reinterpret_cast<const uint4*>(weight + i / kBlocks * 2 * kDepth + i % kBlocks * 32);
  }
  const T* const biases = static_cast<const T*>(lifted.bias) + head * kHeadWidth + column + 4 * lane.t;
  float bias[4];  // of the lane's four columns
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    bias[i] = lifted.bias != nullptr ? widened(biases[i]) : 0.0f;
  }

  int stage = 0;
#pragma unroll 1
  for (int item = 0; item < share.count; ++item) {
    await_copies<kStages - 2>();
    named_barrier(kLifters, kLiftThreads);
    const int free = stage == 0 ? kStages - 1 : stage - 1;
    if (item + kStages - 1 < share.count) {
      fetch(given, shared, free, share[item + kStages - 1], head);
    }
    commit_copies();
    float sum[2][4] = {};
    lift<T, kDepth, kBlocks, false>(sum, shared.summaries[stage][group] + lane.g * summary_stride(kDepth) + 8 * lane.t,
                                    [&](int tile, int block) { return held[tile * kBlocks + block]; });
    const int team = item % kTeams;
    if (item >= kTeams) {
      named_barrier(kEmpty + team, kLiftThreads + kTeamThreads);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane.g + 8 * half;
      const float r = shared.sums[stage][group][row];
      const float2 left = make_float2(fmaf(r, bias[0], sum[0][2 * half]), fmaf(r, bias[1], sum[0][2 * half + 1]));
      const float2 right = make_float2(fmaf(r, bias[2], sum[1][2 * half]), fmaf(r, bias[3], sum[1][2 * half + 1]));
      const int place = column + 4 * lane.t;
      float* const to = shared.lifted[team][group] + row * kLiftedStride;
      *reinterpret_cast<float2*>(to + (group == 2 ? value_place(place) : place)) = left;
      *reinterpret_cast<float2*>(to + (group == 2 ? value_place(place + 2) : place + 2)) = right;
      if (group == 0) {
        const int64_t slot = static_cast<int64_t>(share[item]) * kSlots + row;
        *reinterpret_cast<float4*>(given.compressed + (slot * given.heads + head) * kHeadWidth + place) =
            make_float4(left.x, left.y, right.x, right.y);
      }
    }
    named_barrier_arrive(kFull + team, kLiftThreads + kTeamThreads);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
}

/// What a warp of a team does: P' and O of every other sequence, and 64 columns of M.
template <class T, int kDepth>
__device__ inline void mix_all(const CorePaperArguments& given, Shared<kDepth>& shared, float* width,
                               const Share& share, int head) {
  const int thread = static_cast<int>(threadIdx.x) - kLiftThreads;
  const int team = thread / kTeamThreads;
  copy_pieces(shared.out, static_cast<const T*>(given.out_weight) + head * kHeadWidth, given.out_width, kOutPieces,
              static_cast<int64_t>(given.heads) * kHeadWidth, thread, kTeams * kTeamThreads);
  commit_copies();
  if (given.width != nullptr) {
    // Four columns of all rows at a time, behind the last zeros.
    static_assert(kTeams * kTeamThreads == 4 * kHeadWidth);
    const int row = thread / 4;
    const T* const from =
        static_cast<const T*>(given.width) + (static_cast<int64_t>(head) * kHeadWidth + row) * given.e;
#pragma unroll 1
    for (int i = thread % 4; i < round_up(given.e, 8); i += 4) {
      width[row * width_stride(given.e) + i] = i < given.e ? widened(from[i]) : 0.0f;
    }
  }
  await_copies<0>();
  named_barrier(kMixers, kTeams * kTeamThreads);
#pragma unroll 1
  for (int item = team; item < share.count; item += kTeams) {
    const int sequence = share[item];
    named_barrier(kFull + team, kLiftThreads + kTeamThreads);
    float p[2][4] = {};
    attend(p, given, shared.lifted[team][0], given.width != nullptr ? width : nullptr, sequence, head);
    const LeftTile weights[2] = {LeftTile(p[0]), LeftTile(p[1])};
    const auto mixed_step = [&](int step) {
      float sum[2][4] = {};
      mix_values(sum, weights, shared.lifted[team][2], step);
      return split<T>(sum);
    };
    const SplitTile<T> mixed[] = {mixed_step(0), mixed_step(1), mixed_step(2), mixed_step(3)};
    if (item + kTeams < share.count) {
      named_barrier_arrive(kEmpty + team, kLiftThreads + kTeamThreads);
    }
    mix_out<T>(given.m, given.out_width, mixed, shared.out, thread % kTeamThreads / 32 * kMixColumns,
               (static_cast<int64_t>(sequence) * given.heads + head) * kSlots);
  }
}

template <class T, int kDepth>
__global__ void __launch_bounds__(kThreads, 1) core_paper_kernel(const __grid_constant__ CorePaperArguments given) {
  extern __shared__ float4 shared_memory[];
  auto& shared = *reinterpret_cast<Shared<kDepth>*>(shared_memory);
  const int head = static_cast<int>(blockIdx.x);
  const Share share(given.batch);
  expect_weights<T, kDepth>(given, head);
  take_turn();
  if (threadIdx.x < kLiftThreads) {
    lift_all<T>(given, shared, share, head);
  } else {
    mix_all<T>(given, shared, reinterpret_cast<float*>(&shared + 1), share, head);
  }
}

template <class T, int kDepth>
cudaError_t launch(const CorePaperArguments& given, const CoreDevice& device, cudaStream_t stream) {
  const int bytes = Shared<kDepth>::bytes(given);
  const auto kernel = core_paper_kernel<T, kDepth>;
  if (const auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      status != cudaSuccess) {
    return status;
  }
  const dim3 grid(static_cast<unsigned>(given.heads),
                  static_cast<unsigned>(std::clamp(device.multiprocessors / given.heads, 1, given.batch)));
  return launch_in_row(kernel, grid, kThreads, static_cast<size_t>(bytes), stream, given);
}

/// use(d), as a constant of the compiler's: 64, 128 or 256.
template <class Use>
auto with_depth(int d, const Use& use) {
  return d == 64    ? use(std::integral_constant<int, 64>{})
         : d == 128 ? use(std::integral_constant<int, 128>{})
                    : use(std::integral_constant<int, 256>{});
}

template <class T>
cudaError_t launch_depth(const CorePaperArguments& given, const CoreDevice& device, cudaStream_t stream) {
  return with_depth(given.d, [&](auto depth) { return launch<T, decltype(depth)::value>(given, device, stream); });
}

}  // namespace

/// 256 columns take more shared memory than GPUs before Hopper have; 64 and 128 fit into an A100's 163 KB.
bool core_paper_serves(const CorePaperArguments& given, const CoreDevice& device) {
  const bool heads_of_64 =
      given.lifted[0].width == kHeadWidth && given.lifted[1].width == kHeadWidth && given.lifted[2].width == kHeadWidth;
  const bool depth = given.d == 64 || given.d == 128 || given.d == 256;
  return given.element != Element::float32 && given.aligned && given.d_p == kSlots && heads_of_64 && depth &&
         given.e <= kMostNarrow && given.out_width % 16 == 0 && given.out_width <= kMostOut &&
         ((given.m.rounded == nullptr && given.m.centred == nullptr) || given.m.type == given.element) &&
         device.shared_bytes >=
             with_depth(given.d, [&](auto depth) { return Shared<decltype(depth)::value>::bytes(given); });
}

cudaError_t core_paper(const CorePaperArguments& given, const CoreDevice& device, cudaStream_t stream) {
  return given.element == Element::float16 ? launch_depth<__half>(given, device, stream)
                                           : launch_depth<__nv_bfloat16>(given, device, stream);
}

}  // namespace dba::ops::cuda

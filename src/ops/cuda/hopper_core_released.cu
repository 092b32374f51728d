#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "ops/cuda/hopper_core_released.cuh"
#include "ops/cuda/kernel_row.cuh"

/// Form `released` of `core` in one launch: weights of a half type, 16 slots, heads of 64 columns. A cluster of thread
/// blocks, one for each head, keeps the weights (P_v in registers, the others in shared memory) and goes through
/// sequences. Four warps of each thread block are a team with a sequence of its own; teams wait for nothing of each
/// other's. What crosses heads crosses thread blocks: the compressed sequence C, from which every head's queries, keys
/// and values are projected, and the moments of the LayerNorm. Each is stored into the shared memory of all thread
/// blocks, where a barrier counts the bytes.
///
/// One barrier and one buffer for each suffice: C of the next sequence is stored by a warp that has seen the moments of
/// all, so all have read C; moments of the next by one that has seen all of C, so all have read the moments.
namespace dba::ops::cuda::hopper {
namespace {

using namespace released;

template <class T, int kDepth>
__global__ void __cluster_dims__(kDepth / kHeadWidth, 1, 1) __launch_bounds__(kThreads, 1)
    core_released_kernel(const __grid_constant__ CoreReleasedArguments given) {
  using S = Shared<kDepth>;
  extern __shared__ float4 shared_memory[];
  __shared__ uint64_t barriers[kTeams][2];
  __shared__ uint64_t weights_there;
  S& shared = *reinterpret_cast<S*>(shared_memory);
  const Lane lane;
  const int team = static_cast<int>(threadIdx.x) / kTeamThreads;
  const int member = static_cast<int>(threadIdx.x) / 32 % kTeamWarps;
  const int head = static_cast<int>(blockIdx.x);  // and the thread block's rank in its cluster
  const int first = team * static_cast<int>(gridDim.y) + static_cast<int>(blockIdx.y);
  const int step = kTeams * static_cast<int>(gridDim.y);
  auto& own = shared.team[team];
  uint64_t* const compressed_there = barriers[team];
  uint64_t* const moments_there = barriers[team] + 1;
  if (threadIdx.x == 0) {
    for (auto& of_team : barriers) {
      barrier_init(of_team, 1);
      barrier_init(of_team + 1, 1);
    }
    barrier_init(&weights_there, kThreads);
    barriers_ready();
  }
  __syncthreads();
  cluster_arrive();
  expect_weights<T, kDepth>(given, head);
  take_turn();

  constexpr int kBlocks = kDepth / 32;
  const int column = head * kHeadWidth + kPartColumns * member;  // of C
  uint4 held[2 * kBlocks];
  float bias[4];
  if (first < given.batch) {
    fetch_summaries<kDepth>(given, first, head, own);
    const T* const weight = static_cast<const T*>(given.compress_weight) +
                            static_cast<int64_t>(column + lane.row_of_pair()) * kDepth + 8 * lane.t;
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i) {
      held[i] = *reinterpret_cast<const uint4*>(weight + i / kBlocks * 2 * kDepth + i % kBlocks * 32);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bias[i] = number_or_zero<T>(given.compress_bias, column + 4 * lane.t + i);
    }
  }
  commit_copies();
  fetch_weights<T, kDepth>(given, head, shared);
  // A team without a sequence arrives and waits for nothing.
  const auto hand_in_weights = [&] {
    await_copies<0>();
    barrier_arrive(&weights_there);
  };
  const auto meet_team = [&] { named_barrier(1 + team, kTeamThreads); };
  cluster_wait();

  uint32_t parity = 0;
#pragma unroll 1
  for (int sequence = first; sequence < given.batch; sequence += step) {
    if (sequence == first) {
      await_copies<1>();
    } else {
      await_copies<0>();
    }
    meet_team();
    if (threadIdx.x % kTeamThreads == 0) {
      barrier_expect(compressed_there, kSlots * kDepth * sizeof(float));
      barrier_expect(moments_there, sizeof(own.moments));
    }
    float lifted[2][4] = {};
    lift<T, kDepth, kBlocks, true>(lifted, own.summaries + lane.g * S::kStride + 8 * lane.t,
                                   [&](int tile, int block) { return held[tile * kBlocks + block]; });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane.g + 8 * half;
      const float r = own.sums[row];
      const float4 value =
          make_float4(fmaf(r, bias[0], lifted[0][2 * half]), fmaf(r, bias[1], lifted[0][2 * half + 1]),
                      fmaf(r, bias[2], lifted[1][2 * half]), fmaf(r, bias[3], lifted[1][2 * half + 1]));
      const int place = column + 4 * lane.t;
#pragma unroll
      for (int rank = 0; rank < S::kHeads; ++rank) {
        store_in(reinterpret_cast<float4*>(own.compressed + row * S::kStride + place), compressed_there, rank, value);
      }
      *reinterpret_cast<float4*>(given.compressed + (static_cast<int64_t>(sequence) * kSlots + row) * kDepth + place) =
          value;
    }
    if (sequence == first) {
      hand_in_weights();
      barrier_wait(&weights_there, 0);
    }
    barrier_wait<WritesOf::cluster>(compressed_there, parity);
    if (sequence + step < given.batch) {
      fetch_summaries<kDepth>(given, sequence + step, head, own);
    }
    commit_copies();
    project<T, kDepth>(shared, own, member);
    meet_team();
    float mixed[2][4] = {};
    attend(mixed, given, own, member, sequence, head);
    send_moments<S::kHeads>(mixed, own.moments, moments_there, head * kTeamWarps + member);
    barrier_wait<WritesOf::cluster>(moments_there, parity);
    normalise<S::kHeads>(mixed, own.moments, shared.vectors, member);
    hand_over<T>(own.fragments, mixed, member);
    meet_team();
    SplitTile<T> normed[kTeamWarps];
    take_over<T>(normed, own.fragments);
    mix_out<T>(given.m, given.out_width, normed, shared.out, kMixColumns * member,
               (static_cast<int64_t>(sequence) * S::kHeads + head) * kSlots);
    parity ^= 1u;
  }
  if (first >= given.batch) {
    hand_in_weights();
  }
  cluster_arrive_with_nothing();
  cluster_wait();
}

/// How many clusters of a kernel run at once on the current device; 0 where that cannot be told. `known` is the
/// kernel's, by device.
template <class Kernel, size_t kDevices>
int clusters_at_once(Kernel kernel, int heads, int bytes, std::array<std::atomic<int>, kDevices>& known) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= static_cast<int>(kDevices)) {
    return 0;
  }
  auto& count = known[static_cast<size_t>(device)];
  if (count == 0) {
    cudaLaunchAttribute shape{};
    shape.id = cudaLaunchAttributeClusterDimension;
    shape.val.clusterDim.x = static_cast<unsigned>(heads);
    shape.val.clusterDim.y = 1;
    shape.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(heads));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = static_cast<size_t>(bytes);
    config.attrs = &shape;
    config.numAttrs = 1;
    int found = 0;
    if (cudaOccupancyMaxActiveClusters(&found, kernel, &config) != cudaSuccess) {
      return 0;
    }
    count = found;
  }
  return count;
}

template <class T, int kDepth>
cudaError_t launch(const CoreReleasedArguments& given, cudaStream_t stream) {
  using S = Shared<kDepth>;
  constexpr int kBytes = sizeof(S);
  const auto kernel = core_released_kernel<T, kDepth>;
  if (const auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      status != cudaSuccess) {
    return status;
  }
  static std::array<std::atomic<int>, 64> known{};
  const int clusters = clusters_at_once(kernel, S::kHeads, kBytes, known);
  if (clusters == 0) {
    return cudaErrorLaunchOutOfResources;
  }
  const dim3 grid(S::kHeads, static_cast<unsigned>(std::min(clusters, given.batch)));
  return launch_overlapped(kernel, grid, kThreads, static_cast<size_t>(kBytes), stream, given);
}

template <class T>
cudaError_t launch_depth(const CoreReleasedArguments& given, cudaStream_t stream) {
  return given.d == 128 ? launch<T, 128>(given, stream) : launch<T, 256>(given, stream);
}

}  // namespace

const char* core_released_obstacle(const CoreReleasedArguments& given) {
  if (given.element == Element::float32) {
    return "the kernel of one launch takes weights of a half type";
  }
  if (given.d_p != kSlots) {
    return "the kernel of one launch takes 16 slots";
  }
  // A cluster of one thread block hung on an H200: its stores to itself never reached the barriers.
  if (given.value_width != kHeadWidth || (given.d != 128 && given.d != 256) || given.heads * kHeadWidth != given.d ||
      given.compressed_width != given.d) {
    return "the kernel of one launch takes 2 or 4 heads of 64 columns";
  }
  if (given.e > kMostScore) {
    return "the kernel of one launch takes queries and keys of up to 16 columns a head";
  }
  if (given.out_width % 16 != 0 || given.out_width > kMostOut) {
    return "the kernel of one launch takes output widths that are multiples of 16 up to 256";
  }
  if (given.cross) {
    return "the kernel of one launch takes no other stream";
  }
  if (!given.aligned) {
    return "the kernel of one launch takes addresses that are multiples of 16 bytes";
  }
  return (given.m.rounded != nullptr || given.m.centred != nullptr) && given.m.type != given.element
             ? "the kernel of one launch takes weights of the tokens' type"
             : nullptr;
}

cudaError_t core_released(const CoreReleasedArguments& given, cudaStream_t stream) {
  return given.element == Element::float16 ? launch_depth<__half>(given, stream)
                                           : launch_depth<__nv_bfloat16>(given, stream);
}

}  // namespace dba::ops::cuda::hopper

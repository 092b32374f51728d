#include <cuda_runtime.h>

#include "ops/cuda/hopper.h"
#include "ops/cuda/hopper_compress_consumer.cuh"
#include "ops/cuda/hopper_merge.cuh"
#include "ops/cuda/kernel_row.cuh"
#include "ops/cuda/tensor_map.h"

namespace dba::ops::cuda::hopper {
namespace {

using namespace compressing;

template <class T, int kPanels, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    compress_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ CompressKernel k) {
  using L = Layout<kPanels>;
  extern __shared__ unsigned char raw[];
  unsigned char* shared = raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
  const bool single = static_cast<int>(blockIdx.x) >= k.division.pairs * k.division.pair_ranges;
  if (threadIdx.x == 0) {
    prefetch_map(&map);
    auto* full = reinterpret_cast<uint64_t*>(shared + L::kBarrierOffset);
    for (int stage = 0; stage < L::kMostStages; ++stage) {
      barrier_init(full + stage, 1);
      barrier_init_for_warps(full + L::kMostStages + stage, single ? 4 : 8);  // the consuming ones
    }
    barriers_ready();
  }
  take_turn();
  int begin_0, begin_1;
  first_sequences_behind(k.bounds, find_worker(k.division, k.rows_in_all, 0).first_row,
                         find_worker(k.division, k.rows_in_all, 1).first_row, kThreads, begin_0, begin_1);
  __syncthreads();

  const int group = warp_group();
  if (group == 0) {
    give_registers<40>();
    if (threadIdx.x == 0) {
      produce<kPanels>(map, k, shared, single, begin_0, begin_1);
    }
  } else {
    take_registers<232>();
    Consumer<T, kPanels, kDropout>(k, shared, single, group - 1).run();
  }
}

SlotDivision division_of(const CompressArguments& a, int multiprocessors) {
  return divide_slots(a.rows.rows(), static_cast<int>(a.x.rows), multiprocessors, kTokens);
}

template <class T, int kPanels, bool kDropout>
cudaError_t launch(const CompressArguments& a, int multiprocessors, cudaStream_t stream) {
  CompressKernel k{};
  k.rows_in_all = static_cast<int>(a.x.rows);
  k.bounds = {a.bounds.begin, a.bounds.end, static_cast<int>(a.bounds.count)};
  k.rows = view_of(a.rows, a.x.width, a.element);
  k.division = division_of(a, multiprocessors);
  k.rng = a.dropout.rng;
  k.threshold = philox::threshold(a.dropout.p);
  k.keep_scale = static_cast<float>(1.0 / (1.0 - a.dropout.p));
  k.c = a.out.c;
  k.r = a.out.r;
  k.lse = a.out.lse;
  k.parts = part_store(a.workspace, k.division, a.x.width);

  CUtensorMap map;
  if (const auto status = describe_matrix(map, a.element, a.x, kTokens); status != cudaSuccess) {
    return status;
  }
  auto* kernel = compress_kernel<T, kPanels, kDropout>;
  constexpr int kBytes = Layout<kPanels>::kBytes;
  if (const auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      status != cudaSuccess) {
    return status;
  }
  if (const auto status = launch_overlapped(kernel, k.division.thread_blocks(), kThreads, kBytes, stream, map, k);
      status != cudaSuccess) {
    return status;
  }
  MergeSummaries merge{k.bounds, k.division, k.parts, k.rows, k.keep_scale, a.out.c, a.out.r, a.out.lse};
  return launch_merge(merge, stream);
}

template <class T>
cudaError_t launch_width(const CompressArguments& a, int multiprocessors, cudaStream_t stream) {
  const auto with = [&](auto panels) {
    constexpr int kPanels = decltype(panels)::value;
    return a.dropout.p > 0 ? launch<T, kPanels, true>(a, multiprocessors, stream)
                           : launch<T, kPanels, false>(a, multiprocessors, stream);
  };
  switch (panels_for(a.x.width)) {
    case 1:
      return with(std::integral_constant<int, 1>{});
    case 2:
      return with(std::integral_constant<int, 2>{});
    default:
      return with(std::integral_constant<int, 4>{});
  }
}

}  // namespace

const char* compress_obstacle(const CompressArguments& a) {
  return width_obstacle(a.element, a.x);
}

size_t compress_workspace(const CompressArguments& a, int multiprocessors) {
  return part_store_bytes(division_of(a, multiprocessors), a.x.width);
}

cudaError_t compress(const CompressArguments& a, int multiprocessors, cudaStream_t stream) {
  return a.element == Element::float16 ? launch_width<__half>(a, multiprocessors, stream)
                                       : launch_width<__nv_bfloat16>(a, multiprocessors, stream);
}

}  // namespace dba::ops::cuda::hopper

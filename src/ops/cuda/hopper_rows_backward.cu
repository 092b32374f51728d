#include <cuda_runtime.h>

#include "ops/cuda/hopper_rows_backward_consumer.cuh"
#include "ops/cuda/kernel_row.cuh"
#include "ops/cuda/tensor_map.h"

/// The gradients of the score rows: a warp group keeps dA of 64 slots in registers while the tokens stream by. Two warp
/// groups of a thread block take two blocks of slots over the same tokens; for a last, odd block they take turns with
/// the tiles; the sums of a whole sequence are added in place, of others each leaves its own.
namespace dba::ops::cuda::hopper {
namespace {

using namespace rows_backward;

template <class T, int kPanels, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    rows_backward_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ RowsKernel k) {
  extern __shared__ unsigned char raw[];
  Block<kPanels> block{k, raw + ((1024 - (shared_address(raw) & 1023)) & 1023)};
  if (threadIdx.x == 0) {
    prefetch_map(&map);
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(block.full(stage), 1);
      barrier_init_for_warps(block.empty(stage), 8);
    }
    barriers_ready();
  }
  take_turn();
  const int first_sequence =
      first_sequence_behind(k.s.bounds, find_place(k.division, k.s.rows_in_all).first_row, kThreads);
  __syncthreads();
  const int group = warp_group();
  if (group == 0) {
    give_registers<40>();
    if (threadIdx.x == 0) {
      block.feed(map, find_place(k.division, k.s.rows_in_all), first_sequence);
    }
  } else {
    take_registers<232>();
    Consumer<T, kPanels, kDropout>(block, group - 1).run();
  }
}

template <class T, int kPanels, bool kDropout>
cudaError_t launch(const RowsBackward& a, cudaStream_t stream) {
  RowsKernel k{};
  k.s = a.shared;
  k.division = a.division;
  k.each_rows = a.each_rows;
  k.deach = a.deach;
  k.parts = a.parts;
  k.shared_parts = a.shared_parts;
  const int shared_rows = k.s.rows - a.each_rows;
  CUtensorMap map;
  auto status = describe_matrix(map, a.element, a.x, kTokens);
  if (status != cudaSuccess) {
    return status;
  }
  auto* kernel = rows_backward_kernel<T, kPanels, kDropout>;
  constexpr int kBytes = Layout<kPanels>::kBytes;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) {
    return status;
  }
  const auto& division = a.division;
  const int blocks = division.pairs * division.pair_ranges + division.single_ranges / 2;
  status = launch_overlapped(kernel, blocks, kThreads, kBytes, stream, map, k);
  const MergeSums merge{k.s.bounds, division, a.parts, true, a.each_rows, k.s.width, a.deach};
  // The last block may be divided into another number of ranges than the pairs before it.
  RangeSums sums;
  for (int row = 0; row < shared_rows;) {
    const int block = (a.each_rows + row) / kBlockSlots;
    const int until = division.is_single(block) ? shared_rows
                      : 2 * division.pairs * kBlockSlots - a.each_rows < shared_rows
                          ? 2 * division.pairs * kBlockSlots - a.each_rows
                          : shared_rows;
    sums.add(a.shared_parts, static_cast<int64_t>(row) * k.s.width, ranges_of_block(division, block),
             a.dshared.from(static_cast<int64_t>(row) * k.s.width), static_cast<int64_t>(until - row) * k.s.width);
    row = until;
  }
  if (a.dshared_bias.data != nullptr) {
    sums.add({}, 0, /*ranges=*/0, a.dshared_bias, shared_rows);
  }
  return status == cudaSuccess ? launch_sums(merge, sums, stream) : status;
}

template <class T>
cudaError_t launch_width(const RowsBackward& a, cudaStream_t stream) {
  const auto with = [&](auto panels) {
    constexpr int kPanels = decltype(panels)::value;
    return a.dropout ? launch<T, kPanels, true>(a, stream) : launch<T, kPanels, false>(a, stream);
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

/// The two warp groups of a single block's thread block share a range, so its rows are counted by thread blocks.
SlotDivision divide_rows_backward(int slots, int rows, int multiprocessors) {
  SlotDivision division = divide_slots(slots, rows, multiprocessors, kTokens);
  if (division.single_ranges > 0) {
    const int thread_blocks = division.single_ranges / 2;
    division.single_rows = range_length(rows, thread_blocks);
  }
  return division;
}

cudaError_t launch_rows_backward(const RowsBackward& a, cudaStream_t stream) {
  return a.element == Element::float16 ? launch_width<__half>(a, stream) : launch_width<__nv_bfloat16>(a, stream);
}

}  // namespace dba::ops::cuda::hopper

#include <cuda_runtime.h>

#include "ops/cuda/hopper_rows.cuh"
#include "ops/cuda/hopper_tokens_backward_consumer.cuh"
#include "ops/cuda/kernel_row.cuh"
#include "ops/cuda/tensor_map.h"

/// dX: a warp group keeps the gradient of 64 tokens in registers while the score rows and dC of its sequence stream by
/// in blocks of 64 slots, and last restore's rows with the gradient that its backward left for them.
namespace dba::ops::cuda::hopper {
namespace {

using namespace tokens_backward;

template <class T, int kPanels, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    tokens_backward_kernel(const __grid_constant__ Maps maps, const __grid_constant__ TokensKernel k) {
  extern __shared__ unsigned char raw[];
  Block<kPanels> block{k, raw + ((1024 - (shared_address(raw) & 1023)) & 1023)};
  if (threadIdx.x == 0) {
    for (int entry = 0; entry < kEntries; ++entry) {
      barrier_init(block.full(entry), 1);
      barrier_init_for_warps(block.empty(entry), 8);
    }
    barrier_init(block.x_full(), 1);
    barrier_init_for_warps(block.x_empty(), 8);
    barriers_ready();
  }
  take_turn();
  const int first_sequence = first_sequence_behind(k.s.bounds, block.first_row(), kThreads);
  __syncthreads();
  const int group = warp_group();
  if (group == 0) {
    give_registers<24>();
    if (threadIdx.x == 0) {
      block.feed(maps, first_sequence);
    } else if (threadIdx.x >= 32) {
      clear_rows_of_nobody<T, kClearers>(k.s.bounds, block.first_row(), block.last_row(), first_sequence, k.dx,
                                         k.s.width, static_cast<int>(threadIdx.x) - 32);
    }
  } else {
    take_registers<240>();
    Consumer<T, kPanels, kDropout>(block, group - 1).run();
  }
}

template <class T, int kPanels, bool kDropout>
cudaError_t launch(const TokensBackward& a, int multiprocessors, cudaStream_t stream) {
  TokensKernel k{};
  k.s = a.shared;
  const int most = k.s.rows_in_all / (2 * kTokens) + 1;
  const int ranges = multiprocessors < most ? multiprocessors : most;
  k.range_rows = range_length(k.s.rows_in_all, ranges);
  k.blocks = k.s.prepared.padded / kBlockSlots;
  k.restore_blocks = a.dscores == nullptr ? 0 : (a.restore_slots + kBlockSlots - 1) / kBlockSlots;
  k.dx = a.dx;
  Maps maps{};
  const auto& prepared = k.s.prepared;
  const int64_t count = k.s.bounds.count;
  auto status = describe_matrix(maps.x, a.element, a.x, kTokens);
  if (status == cudaSuccess) {
    status = describe_matrices(maps.rows, a.element, prepared.rows, prepared.rows_differ ? count : 1, prepared.padded,
                               k.s.width, kBlockSlots);
  }
  if (status == cudaSuccess) {
    status = describe_matrices(maps.dc, a.element, prepared.dc, count, prepared.padded, k.s.width, kBlockSlots);
  }
  if (status == cudaSuccess && k.restore_blocks > 0) {
    status =
        describe_matrices(maps.restore_rows, a.element, a.restore_rows, 1, a.restore_slots, k.s.width, kBlockSlots);
  }
  if (status == cudaSuccess && k.restore_blocks > 0) {
    status = describe_matrix(maps.dscores, a.element, {a.dscores, a.x.rows, a.restore_slots, a.restore_slots}, kTokens);
  }
  if (status != cudaSuccess) {
    return status;
  }
  auto* kernel = tokens_backward_kernel<T, kPanels, kDropout>;
  constexpr int kBytes = Layout<kPanels>::kBytes;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) {
    return status;
  }
  return launch_overlapped(kernel, ranges, kThreads, kBytes, stream, maps, k);
}

template <class T>
cudaError_t launch_width(const TokensBackward& a, int multiprocessors, cudaStream_t stream) {
  const auto with = [&](auto panels) {
    constexpr int kPanels = decltype(panels)::value;
    return a.dropout ? launch<T, kPanels, true>(a, multiprocessors, stream)
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

cudaError_t launch_tokens_backward(const TokensBackward& a, int multiprocessors, cudaStream_t stream) {
  return a.element == Element::float16 ? launch_width<__half>(a, multiprocessors, stream)
                                       : launch_width<__nv_bfloat16>(a, multiprocessors, stream);
}

}  // namespace dba::ops::cuda::hopper

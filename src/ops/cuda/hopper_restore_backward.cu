#include <cuda_runtime.h>

#include "ops/cuda/hopper.h"
#include "ops/cuda/hopper_merge.cuh"
#include "ops/cuda/hopper_restore_backward_consumers.cuh"
#include "ops/cuda/hopper_rows.cuh"
#include "ops/cuda/kernel_row.cuh"
#include "ops/cuda/tensor_map.h"

/// Restore's backward but for dX, over tiles of 64 tokens and 64 slots. The first warp group recomputes the weights U
/// and sums dM = Ũᵀ dY; the second takes dU = dY Mᵀ, turns it into the scores' gradient dS, and sums dF = dSᵀ X. The
/// producer's other warps sum dY for the bias.
namespace dba::ops::cuda::hopper {
namespace {

using namespace restoring_backward;

template <class T, int kPanels, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    restore_backward_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap dy_map,
                            const __grid_constant__ CUtensorMap m_map,
                            const __grid_constant__ RestoreBackwardKernel k) {
  using L = Layout<kPanels>;
  extern __shared__ unsigned char raw[];
  Block<T, kPanels> block{k, raw + ((1024 - (shared_address(raw) & 1023)) & 1023)};
  if (threadIdx.x == 0) {
    prefetch_map(&x_map);
    prefetch_map(&dy_map);
    prefetch_map(&m_map);
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(block.full(stage), 1);
      barrier_init_for_warps(block.empty(stage), 8 + (block.sums_dy() ? kSummers : 0));
    }
    barrier_init(block.m_full(), 1);
    barrier_init_for_warps(block.m_empty(), 4);
    barrier_init_for_warps(block.cleared(), 8);
    barrier_init_for_warps(block.weights_ready(), 4);
    barrier_init_for_warps(block.weights_taken(), 4);
    barriers_ready();
  }
  take_turn();
  const int first_slot = block.slot_block() * kBlockSlots;
  if (threadIdx.x < kBlockSlots) {
    reinterpret_cast<float*>(block.shared + L::kBias)[threadIdx.x] =
        k.rows.bias(0, first_slot + static_cast<int>(threadIdx.x));
  }
  if (threadIdx.x < 256) {
    load_rows<T, kPanels, 256>(block.shared + L::kF, k.rows.width, static_cast<int>(threadIdx.x), [&](int i) {
      return first_slot + i < k.slots ? k.rows.row<T>(0, first_slot + i) : static_cast<const T*>(nullptr);
    });
  }
  publish_shared();
  const int first_sequence = first_sequence_behind(k.bounds, block.first_row(), kThreads);
  __syncthreads();

  const int group = warp_group();
  if (group == 0) {
    give_registers<40>();
    if (threadIdx.x == 0) {
      block.feed(x_map, dy_map, m_map, first_sequence);
    } else if (threadIdx.x >= 32) {
      const int thread = static_cast<int>(threadIdx.x) - 32;
      if (block.sums_dy()) {
        block.sum_dy(thread / 32, thread % 32);
      }
      if (block.slot_block() == 0) {
        clear_rows_of_nobody<T, 32 * kSummers>(k.bounds, block.first_row(), block.last_row(), first_sequence, k.dscores,
                                               k.slots, thread);
      }
    }
  } else if (group == 1) {
    take_registers<232>();
    WeightsGroup<T, kPanels, kDropout>(block).run();
  } else {
    take_registers<232>();
    GradientsGroup<T, kPanels, kDropout>(block).run();
  }
}

struct Plan {
  int panels;
  int slot_blocks;
  int ranges;
  int range_rows;
  float* dm_parts;
  float* drows_parts;
  float* dbias_parts;
  float* dout_bias_parts;
  size_t bytes;
};

Plan plan_of(const RestoreBackwardArguments& a, int multiprocessors) {
  Plan plan{};
  const auto& f = a.forward;
  const int width = f.x.width > f.out_width ? f.x.width : f.out_width;
  plan.panels = panels_for(width);
  plan.slot_blocks = (f.rows.rows() + kBlockSlots - 1) / kBlockSlots;
  const int rows = static_cast<int>(f.x.rows);
  const int most = rows / kTokens + 1;
  const int wanted = multiprocessors > plan.slot_blocks ? multiprocessors / plan.slot_blocks : 1;
  plan.ranges = wanted < most ? wanted : most;
  plan.range_rows = range_length(rows, plan.ranges);
  auto* next = static_cast<float*>(a.workspace);
  size_t floats = 0;
  const auto take = [&](size_t count) {
    float* place = next == nullptr ? nullptr : next + floats;
    floats += (count + 31) / 32 * 32;
    return place;
  };
  const size_t padded_slots = static_cast<size_t>(plan.slot_blocks) * kBlockSlots;
  plan.dm_parts = take(2 * plan.ranges * padded_slots * f.out_width);
  plan.drows_parts = take(plan.ranges * padded_slots * f.x.width);
  plan.dbias_parts = take(plan.ranges * padded_slots);
  plan.dout_bias_parts = take(static_cast<size_t>(plan.ranges) * kSummers * f.out_width);
  plan.bytes = floats * sizeof(float);
  return plan;
}

template <class T, int kPanels, bool kDropout>
cudaError_t launch(const RestoreBackwardArguments& a, int multiprocessors, cudaStream_t stream) {
  const auto& f = a.forward;
  const Plan plan = plan_of(a, multiprocessors);
  RestoreBackwardKernel k{};
  k.rows_in_all = static_cast<int>(f.x.rows);
  k.ranges = plan.ranges;
  k.range_rows = plan.range_rows;
  k.bounds = {f.bounds.begin, f.bounds.end, static_cast<int>(f.bounds.count)};
  k.rows = view_of(f.rows, f.x.width, f.element);
  k.slots = f.rows.rows();
  k.d_p = k.slots / f.heads;
  k.linear = f.linear;
  k.rng = f.dropout.rng;
  k.threshold = philox::threshold(f.dropout.p);
  k.keep_scale = static_cast<float>(1.0 / (1.0 - f.dropout.p));
  k.out_width = f.out_width;
  k.dscores = a.dscores;
  k.dm = a.dm;
  k.dm_parts = plan.dm_parts;
  k.drows_parts = plan.drows_parts;
  k.dbias_parts = a.dbias.data != nullptr ? plan.dbias_parts : nullptr;
  k.dout_bias_parts = a.dout_bias.data != nullptr ? plan.dout_bias_parts : nullptr;

  CUtensorMap x_map, dy_map, m_map;
  for (const auto status :
       {describe_matrix(x_map, f.element, f.x, kTokens), describe_matrix(dy_map, f.element, a.dy, kTokens),
        describe_matrices(m_map, f.element, f.m, f.bounds.count, k.slots, f.out_width, kBlockSlots)}) {
    if (status != cudaSuccess) {
      return status;
    }
  }
  auto* kernel = restore_backward_kernel<T, kPanels, kDropout>;
  constexpr int kBytes = Layout<kPanels>::kBytes;
  if (const auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      status != cudaSuccess) {
    return status;
  }
  if (const auto status = launch_overlapped(kernel, dim3(plan.ranges, plan.slot_blocks), kThreads, kBytes, stream,
                                            x_map, dy_map, m_map, k);
      status != cudaSuccess) {
    return status;
  }
  SlotDivision division;
  division.blocks = plan.slot_blocks;
  division.pairs = (plan.slot_blocks + 1) / 2;
  division.pair_ranges = plan.ranges;
  division.pair_rows = plan.range_rows;
  const int64_t padded_slots = static_cast<int64_t>(plan.slot_blocks) * kBlockSlots;
  RangeSums sums;
  sums.add({plan.drows_parts, padded_slots * f.x.width}, 0, plan.ranges, a.drows,
           static_cast<int64_t>(k.slots) * f.x.width);
  if (a.dbias.data != nullptr) {
    sums.add({plan.dbias_parts, padded_slots}, 0, plan.ranges, a.dbias, k.slots);
  }
  if (a.dout_bias.data != nullptr) {
    sums.add({plan.dout_bias_parts, f.out_width}, 0, plan.ranges * kSummers, a.dout_bias, f.out_width);
  }
  return launch_sums({k.bounds, division, plan.dm_parts, false, k.slots, f.out_width, a.dm}, sums, stream);
}

template <class T>
cudaError_t launch_width(const RestoreBackwardArguments& a, int multiprocessors, cudaStream_t stream) {
  const auto with = [&](auto panels) {
    constexpr int kPanels = decltype(panels)::value;
    return a.forward.dropout.p > 0 ? launch<T, kPanels, true>(a, multiprocessors, stream)
                                   : launch<T, kPanels, false>(a, multiprocessors, stream);
  };
  switch (plan_of(a, multiprocessors).panels) {
    case 1:
      return with(std::integral_constant<int, 1>{});
    case 2:
      return with(std::integral_constant<int, 2>{});
    default:
      return with(std::integral_constant<int, 4>{});
  }
}

}  // namespace

const char* restore_backward_obstacle(const RestoreBackwardArguments& a) {
  if (a.forward.rows.rows() % 8 != 0) {
    return "the Hopper kernels take multiples of 8 slots";
  }
  return restore_obstacle(a.forward);
}

size_t restore_backward_workspace(const RestoreBackwardArguments& a, int multiprocessors) {
  return plan_of(a, multiprocessors).bytes;
}

cudaError_t restore_backward(const RestoreBackwardArguments& a, int multiprocessors, cudaStream_t stream) {
  return a.forward.element == Element::float16 ? launch_width<__half>(a, multiprocessors, stream)
                                               : launch_width<__nv_bfloat16>(a, multiprocessors, stream);
}

}  // namespace dba::ops::cuda::hopper

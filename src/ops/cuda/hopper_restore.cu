#include <cuda_runtime.h>

#include "ops/cuda/hopper.h"
#include "ops/cuda/hopper_merge.cuh"
#include "ops/cuda/hopper_restore_consumer.cuh"
#include "ops/cuda/hopper_rows.cuh"
#include "ops/cuda/kernel_row.cuh"
#include "ops/cuda/tensor_map.h"

namespace dba::ops::cuda::hopper {
namespace {

using namespace restoring;

constexpr int kSharedLimit = 227 * 1024;

template <class T, int kPanels, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    restore_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap m_map,
                   const __grid_constant__ CUtensorMap y_map, const __grid_constant__ RestoreKernel k) {
  extern __shared__ unsigned char raw[];
  Block<T, kPanels> block{k, raw + ((1024 - (shared_address(raw) & 1023)) & 1023),
                          Layout<kPanels>(k.stages, k.slot_blocks, k.m_buffers)};
  if (threadIdx.x == 0) {
    prefetch_map(&map);
    prefetch_map(&m_map);
    prefetch_map(&y_map);
    for (int stage = 0; stage < k.stages; ++stage) {
      barrier_init(block.full(stage), 1);
      barrier_init_for_warps(block.mixed(stage), 4);  // the warps of one consumer
      barrier_init_for_warps(block.empty(stage), kWriters / 32);
    }
    for (int buffer = 0; buffer < k.m_buffers; ++buffer) {
      barrier_init(block.m_full(buffer), 1);
      barrier_init_for_warps(block.m_empty(buffer), 8);
    }
    barriers_ready();
  }
  take_turn();
  auto* bias = reinterpret_cast<float*>(block.shared + block.at.bias);
  for (int i = static_cast<int>(threadIdx.x); i < k.slot_blocks * kBlockSlots; i += kThreads) {
    bias[i] = k.rows.bias(0, i);
  }
  auto* out_bias = reinterpret_cast<float*>(block.shared + block.at.out_bias);
  for (int i = static_cast<int>(threadIdx.x); i < kPanels * kPanelColumns; i += kThreads) {
    out_bias[i] = i < k.out_width ? k.out_bias[i] : 0.0f;
  }
  for (int slot_block = 0; slot_block < k.slot_blocks; ++slot_block) {
    if (threadIdx.x < 256) {
      load_rows<T, kPanels, 256>(block.shared + block.at.f + slot_block * Layout<kPanels>::kBlock, k.rows.width,
                                 static_cast<int>(threadIdx.x), [&](int i) {
                                   const int slot = slot_block * kBlockSlots + i;
                                   return slot < k.slots ? k.rows.row<T>(0, slot) : static_cast<const T*>(nullptr);
                                 });
    }
  }
  publish_shared();
  const int first_sequence = first_sequence_behind(k.bounds, block.first_row(), kThreads);
  __syncthreads();

  const int group = warp_group();
  if (group == 0) {
    give_registers<40>();
    if (threadIdx.x == 0) {
      block.feed(map, m_map, first_sequence);
    } else if (threadIdx.x >= 32) {
      const int writer = static_cast<int>(threadIdx.x) - 32;
      clear_rows_of_nobody<T, kWriters>(k.bounds, block.first_row(), block.last_row(), first_sequence, k.y, k.out_width,
                                        writer);
      block.write_tiles(y_map, writer);
    }
  } else {
    take_registers<232>();
    Consumer<T, kPanels, kDropout>(block, group - 1).run();
  }
}

struct Shape {
  int panels;
  int slot_blocks;
  int stages;
  int m_buffers;
};

/// As many stages as fit; two buffers of M where that leaves three.
template <int kPanels>
Shape shape_for(int slots) {
  Shape shape{kPanels, (slots + kBlockSlots - 1) / kBlockSlots, 0, 2};
  for (; shape.m_buffers > 0; --shape.m_buffers) {
    for (shape.stages = kMostStages; shape.stages > 1; --shape.stages) {
      if (Layout<kPanels>(shape.stages, shape.slot_blocks, shape.m_buffers).bytes <= kSharedLimit) {
        break;
      }
    }
    if (shape.stages > 2 || (shape.m_buffers == 1 && shape.stages > 1)) {
      return shape;
    }
  }
  return {kPanels, shape.slot_blocks, 0, 0};
}

Shape shape_of(const RestoreArguments& a) {
  const int width = a.x.width > a.out_width ? a.x.width : a.out_width;
  switch (panels_for(width)) {
    case 1:
      return shape_for<1>(a.rows.rows());
    case 2:
      return shape_for<2>(a.rows.rows());
    default:
      return shape_for<4>(a.rows.rows());
  }
}

template <class T, int kPanels, bool kDropout>
cudaError_t launch(const RestoreArguments& a, int multiprocessors, cudaStream_t stream) {
  const Shape shape = shape_of(a);
  RestoreKernel k{};
  k.rows_in_all = static_cast<int>(a.x.rows);
  const int most = k.rows_in_all / kTokens + 1;
  const int ranges = multiprocessors < most ? multiprocessors : most;
  k.range_rows = range_length(k.rows_in_all, ranges);
  k.bounds = {a.bounds.begin, a.bounds.end, static_cast<int>(a.bounds.count)};
  k.rows = view_of(a.rows, a.x.width, a.element);
  k.slots = a.rows.rows();
  k.slot_blocks = shape.slot_blocks;
  k.d_p = k.slots / a.heads;
  k.linear = a.linear;
  k.stages = shape.stages;
  k.m_buffers = shape.m_buffers;
  k.rng = a.dropout.rng;
  k.threshold = philox::threshold(a.dropout.p);
  k.keep_scale = static_cast<float>(1.0 / (1.0 - a.dropout.p));
  k.out_width = a.out_width;
  k.out_bias = {a.out_bias, a.out_bias_elements, a.element};
  k.y = a.y;
  CUtensorMap map;
  if (const auto status = describe_matrix(map, a.element, a.x, kTokens); status != cudaSuccess) {
    return status;
  }
  CUtensorMap m_map;
  if (const auto status = describe_matrices(m_map, a.element, a.m, a.bounds.count, k.slots, a.out_width, kBlockSlots);
      status != cudaSuccess) {
    return status;
  }
  CUtensorMap y_map;
  if (const auto status = describe_matrix(y_map, a.element, {a.y, a.x.rows, a.out_width, a.out_width}, kTokens);
      status != cudaSuccess) {
    return status;
  }
  auto* kernel = restore_kernel<T, kPanels, kDropout>;
  const int bytes = Layout<kPanels>(shape.stages, shape.slot_blocks, shape.m_buffers).bytes;
  if (const auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      status != cudaSuccess) {
    return status;
  }
  return launch_overlapped(kernel, ranges, kThreads, bytes, stream, map, m_map, y_map, k);
}

template <class T>
cudaError_t launch_width(const RestoreArguments& a, int multiprocessors, cudaStream_t stream) {
  const auto with = [&](auto panels) {
    constexpr int kPanels = decltype(panels)::value;
    return a.dropout.p > 0 ? launch<T, kPanels, true>(a, multiprocessors, stream)
                           : launch<T, kPanels, false>(a, multiprocessors, stream);
  };
  switch (shape_of(a).panels) {
    case 1:
      return with(std::integral_constant<int, 1>{});
    case 2:
      return with(std::integral_constant<int, 2>{});
    default:
      return with(std::integral_constant<int, 4>{});
  }
}

}  // namespace

const char* restore_obstacle(const RestoreArguments& a) {
  if (const char* obstacle = width_obstacle(a.element, a.x)) {
    return obstacle;
  }
  if (a.out_width < 8 || a.out_width > 256 || a.out_width % 8 != 0) {
    return "the Hopper kernels write widths from 8 to 256 that are multiples of 8";
  }
  const int d_p = a.rows.rows() / a.heads;
  if (!a.linear && (d_p > 64 || (d_p & (d_p - 1)) != 0)) {
    return "the Hopper kernels take a d_p that is a power of two up to 64";
  }
  if (a.rows.each_rows > 0) {
    return "the Hopper kernels take restore rows that all sequences share";
  }
  if (shape_of(a).stages == 0) {
    return "the rows and M do not fit in shared memory";
  }
  return nullptr;
}

cudaError_t restore(const RestoreArguments& a, int multiprocessors, cudaStream_t stream) {
  return a.element == Element::float16 ? launch_width<__half>(a, multiprocessors, stream)
                                       : launch_width<__nv_bfloat16>(a, multiprocessors, stream);
}

}  // namespace dba::ops::cuda::hopper

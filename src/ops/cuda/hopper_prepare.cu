#include <cuda_runtime.h>

#include "ops/cuda/hopper_compress_backward.cuh"
#include "ops/cuda/kernel_row.cuh"

namespace dba::ops::cuda::hopper {
namespace {

constexpr int kWarps = 8;

/// A warp has a row, a lane eight of its columns.
template <class T>
__global__ void __launch_bounds__(32 * kWarps) prepare_kernel(const PrepareArguments a) {
  take_turn();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int sequence = static_cast<int>(index / a.out.padded);
  const int slot = static_cast<int>(index % a.out.padded);
  if (sequence >= a.count) {
    return;
  }
  const int column = 8 * lane;
  const bool exists = slot < a.rows.rows;
  const int64_t row = static_cast<int64_t>(sequence) * a.rows.rows + slot;
  uint32_t dc[4] = {};   // rounded, two numbers each
  float product = 0.0f;  // of the rounded dC, like those it is subtracted from: in a steep softmax the two cancel
  if (exists && column < a.rows.width) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 of_dc = *reinterpret_cast<const float4*>(a.dc + row * a.rows.width + column + 4 * i);
      const float4 of_c = *reinterpret_cast<const float4*>(a.c + row * a.rows.width + column + 4 * i);
      dc[2 * i] = pack<T>(of_dc.x, of_dc.y);
      dc[2 * i + 1] = pack<T>(of_dc.z, of_dc.w);
      const float2 left = unpack<T>(dc[2 * i]), right = unpack<T>(dc[2 * i + 1]);
      product += left.x * of_c.x + left.y * of_c.y + right.x * of_c.z + right.y * of_c.w;
    }
  }
  for (int mask = 16; mask > 0; mask /= 2) {
    product += __shfl_xor_sync(~0u, product, mask);
  }
  if (column < a.rows.width) {
    *reinterpret_cast<uint4*>(static_cast<T*>(a.out.dc) + index * a.rows.width + column) =
        make_uint4(dc[0], dc[1], dc[2], dc[3]);
    if (a.out.rows_differ || sequence == 0) {
      *reinterpret_cast<uint4*>(static_cast<T*>(a.out.rows) + index * a.rows.width + column) =
          exists ? *reinterpret_cast<const uint4*>(a.rows.row<T>(sequence, slot) + column) : make_uint4(0, 0, 0, 0);
    }
  }
  if (lane == 0) {
    float shift = -INFINITY, reduction = 0.0f, dr = 0.0f;
    if (exists) {
      const float bias = a.rows.bias(sequence, slot);
      dr = a.dr == nullptr ? 0.0f : a.dr[row];
      shift = slot < a.rows.softmax ? (bias - a.lse[row]) * kLog2E : bias;
      reduction = product + dr * a.r[row] - (a.dlse == nullptr ? 0.0f : a.dlse[row]);
    }
    BlockNotes& notes = a.out.notes[index / kBlockSlots];
    notes.shift[index % kBlockSlots] = shift;
    notes.reduction[index % kBlockSlots] = reduction;
    notes.dr[index % kBlockSlots] = dr;
  }
}

}  // namespace

cudaError_t launch_prepare(const PrepareArguments& a, cudaStream_t stream) {
  const int64_t rows = static_cast<int64_t>(a.count) * a.out.padded;
  if (rows == 0) {
    return cudaSuccess;
  }
  const auto blocks = static_cast<unsigned>((rows + kWarps - 1) / kWarps);
  if (a.element == Element::float16) {
    return launch_overlapped(prepare_kernel<__half>, blocks, 32 * kWarps, 0, stream, a);
  }
  return launch_overlapped(prepare_kernel<__nv_bfloat16>, blocks, 32 * kWarps, 0, stream, a);
}

}  // namespace dba::ops::cuda::hopper

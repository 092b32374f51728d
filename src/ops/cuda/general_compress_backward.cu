#include "ops/cuda/general_compress_backward.h"

#include "ops/cuda/general.h"
#include "ops/cuda/general_rows.cuh"

namespace dba::ops::cuda::general {
namespace {

constexpr int kPrepareThreads = 256;

/// A warp for each slot of each sequence: its reduction, and for 16-bit tokens its row of dC rounded. The reduction is
/// of the rounded dC, like the products it is subtracted from: where a softmax is steep the two cancel.
template <class Math>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(CompressBackwardArguments given, float* reduction, typename Math::Element* dc) {
  const int64_t slots = row_count(given.forward.rows), width = given.forward.x.width;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kPrepareThreads + threadIdx.x) / 32;
  if (row >= given.forward.bounds.count * slots) {
    return;
  }
  float sum = 0.0f;
  for (int64_t column = lane_index(); column < width; column += 32) {
    const auto value = Math::round(given.dc[row * width + column]);
    sum = fmaf(Math::widen(value), given.summary.c[row * width + column], sum);
    if constexpr (sizeof(*dc) == 2) {
      dc[row * width + column] = value;
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
  }
  if (lane_index() == 0) {
    sum += given.dr == nullptr ? 0.0f : given.dr[row] * given.summary.r[row];
    sum -= given.dlse == nullptr ? 0.0f : given.dlse[row];
    reduction[row] = row % slots >= slots - given.forward.rows.linear ? 0.0f : sum;
  }
}

CompressBackwardPlan plan_compress_backward(const CompressBackwardArguments& given, Scratch& scratch) {
  const CompressArguments& forward = given.forward;
  const size_t size = element_bytes(forward.element);
  const int64_t width = forward.x.width, slots = row_count(forward.rows);
  CompressBackwardPlan plan;
  plan.chunks = chunks_of(forward.x.width, doubled_tile_width(forward.element, forward.x.width));
  plan.each_blocks = (forward.rows.each_rows + kTileRows - 1) / kTileRows;
  plan.shared_blocks = (forward.rows.shared_rows + kTileRows - 1) / kTileRows;
  plan.split = split_rows(forward.x.rows, static_cast<int64_t>(plan.each_blocks + plan.shared_blocks) * plan.chunks,
                          resident_blocks(forward.element, forward.x.width));
  plan.dc = given.dc;
  if (forward.element != Element::float32) {
    plan.dc = scratch.take<uint16_t>(forward.bounds.count * slots * width);
  }
  plan.reduction = scratch.take<float>(forward.bounds.count * slots);
  plan.each = scratch.take<float>(plan.split.places() * forward.rows.each_rows * width);
  plan.shared = scratch.take<float>((plan.split.ranges > 1 ? plan.split.ranges : 0) * forward.rows.shared_rows * width);
  plan.score_sums = scratch.take<float>(plan.split.places() * slots);
  plan.x_aligned = aligned_rows(forward.x.data, forward.x.stride, size);
  plan.rows_aligned = aligned_rows(forward.rows, forward.x.width, size);
  plan.dc_aligned = aligned_rows(plan.dc, width, size);
  plan.dx_aligned = aligned_rows(given.dx, width, size);
  plan.restore_rows_aligned = aligned_rows(given.restore_rows, forward.x.width, size);
  plan.dscores_aligned = aligned_rows(given.dscores, row_count(given.restore_rows), size);
  plan.dropping = dropping(forward.dropout);
  return plan;
}

cudaError_t prepare(const CompressBackwardArguments& given, const CompressBackwardPlan& plan, cudaStream_t stream) {
  const int64_t rows = given.forward.bounds.count * row_count(given.forward.rows);
  const int64_t blocks = (rows * 32 + kPrepareThreads - 1) / kPrepareThreads;
  void* dc = const_cast<void*>(plan.dc);
  switch (given.forward.element) {
    case Element::float16:
      return launch_kernel(prepare_kernel<Float16>, blocks, kPrepareThreads, 0, stream, given, plan.reduction,
                           static_cast<__half*>(dc));
    case Element::bfloat16:
      return launch_kernel(prepare_kernel<Bfloat16>, blocks, kPrepareThreads, 0, stream, given, plan.reduction,
                           static_cast<__nv_bfloat16*>(dc));
    default:
      return launch_kernel(prepare_kernel<Float32>, blocks, kPrepareThreads, 0, stream, given, plan.reduction,
                           static_cast<float*>(dc));
  }
}

}  // namespace

size_t compress_backward_workspace(const CompressBackwardArguments& arguments) {
  Scratch scratch(nullptr);
  plan_compress_backward(arguments, scratch);
  return scratch.used();
}

cudaError_t compress_backward(const CompressBackwardArguments& arguments, cudaStream_t stream) {
  Scratch scratch(arguments.workspace);
  const CompressBackwardPlan plan = plan_compress_backward(arguments, scratch);
  auto status = prepare(arguments, plan, stream);
  if (status == cudaSuccess) {
    status = write_token_gradient(arguments, plan, stream);
  }
  if (status == cudaSuccess && row_count(arguments.forward.rows) > 0) {
    status = write_row_gradient(arguments, plan, stream);
  }
  return status;
}

}  // namespace dba::ops::cuda::general

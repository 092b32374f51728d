#include "ops/cuda/hopper_compress_backward.cuh"

#include <algorithm>

#include "ops/cuda/hopper.h"
#include "ops/philox.h"

namespace dba::ops::cuda::hopper {
namespace {

/// The workspace, cut into pieces of 256 bytes.
struct Plan {
  SlotDivision division;
  PreparedRows prepared;
  float* parts;
  RangeParts shared_parts;
  size_t bytes = 0;
};

Plan plan_of(const CompressBackwardArguments& a, int multiprocessors) {
  const auto& f = a.forward;
  Plan plan{};
  plan.division = divide_rows_backward(f.rows.rows(), static_cast<int>(f.x.rows), multiprocessors);
  const auto take = [&](size_t bytes) -> void* {
    void* place = a.workspace == nullptr ? nullptr : static_cast<unsigned char*>(a.workspace) + plan.bytes;
    plan.bytes += (bytes + 255) / 256 * 256;
    return place;
  };
  const auto padded = [](int rows) { return (rows + kBlockSlots - 1) / kBlockSlots * kBlockSlots; };
  auto& prepared = plan.prepared;
  prepared.padded = padded(f.rows.rows());
  prepared.rows_differ = f.rows.each_rows > 0 && f.rows.each_stride != 0;
  const size_t block = static_cast<size_t>(prepared.padded) * f.x.width * 2;
  const size_t count = f.bounds.count;
  prepared.rows = take(prepared.rows_differ ? count * block : block);
  prepared.dc = take(count * block);
  prepared.notes = static_cast<BlockNotes*>(take(count * prepared.padded / kBlockSlots * sizeof(BlockNotes)));
  if (f.rows.each_rows > 0) {
    plan.parts = static_cast<float*>(
        take(static_cast<size_t>(plan.division.places()) * kBlockSlots * f.x.width * sizeof(float)));
  }
  if (f.rows.shared_rows > 0) {
    const int ranges = std::max(plan.division.pair_ranges, plan.division.single_ranges);
    const int64_t stride = static_cast<int64_t>(padded(f.rows.shared_rows)) * f.x.width;
    const size_t bytes = static_cast<size_t>(stride) * sizeof(float);
    const int split = static_cast<int>(std::min<size_t>(ranges, a.spare_bytes / bytes));
    plan.shared_parts = {static_cast<float*>(a.spare), stride, static_cast<float*>(take((ranges - split) * bytes)),
                         split};
  }
  return plan;
}

}  // namespace

const char* compress_backward_obstacle(const CompressBackwardArguments& a) {
  if (const char* obstacle = compress_obstacle(a.forward)) {
    return obstacle;
  }
  if (a.forward.rows.each_rows % kBlockSlots != 0 && a.forward.rows.shared_rows > 0) {
    return "the Hopper kernels take 64, 128, … rows of each sequence before shared ones";
  }
  if (a.dscores != nullptr && a.restore_rows.each_rows > 0) {
    return "the Hopper kernels take restore rows that all sequences share";
  }
  if (a.dscores != nullptr && a.restore_rows.rows() % 8 != 0) {
    return "the Hopper kernels take multiples of 8 slots";
  }
  if (a.dscore_sums != nullptr) {
    return "the Hopper kernels leave the gradient of linear rows' biases to the general ones";
  }
  return nullptr;
}

size_t compress_backward_workspace(const CompressBackwardArguments& a, int multiprocessors) {
  return plan_of(a, multiprocessors).bytes;
}

cudaError_t compress_backward(const CompressBackwardArguments& a, int multiprocessors, cudaStream_t stream) {
  const auto& f = a.forward;
  const Plan plan = plan_of(a, multiprocessors);
  const ScoreRowsView rows = view_of(f.rows, f.x.width, f.element);
  const int count = static_cast<int>(f.bounds.count);
  auto status = launch_prepare(
      {f.element, count, rows, a.summary.c, a.summary.r, a.summary.lse, a.dc, a.dr, a.dlse, plan.prepared}, stream);
  if (status != cudaSuccess) {
    return status;
  }
  BackwardKernel shared{};
  shared.rows_in_all = static_cast<int>(f.x.rows);
  shared.bounds = {f.bounds.begin, f.bounds.end, count};
  shared.prepared = plan.prepared;
  shared.width = f.x.width;
  shared.rows = rows.rows;
  shared.softmax = rows.softmax;
  shared.rng = f.dropout.rng;
  shared.threshold = philox::threshold(f.dropout.p);
  shared.keep_scale = static_cast<float>(1.0 / (1.0 - f.dropout.p));
  const bool dropout = f.dropout.p > 0;
  status = launch_tokens_backward(
      {shared, f.element, dropout, f.x, a.dscores, a.restore_rows.shared, a.restore_rows.shared_rows, a.dx},
      multiprocessors, stream);
  if (status != cudaSuccess) {
    return status;
  }
  return launch_rows_backward({shared, f.element, dropout, f.x, plan.division, f.rows.each_rows, a.deach, a.dshared,
                               a.dshared_bias, plan.parts, plan.shared_parts},
                              stream);
}

}  // namespace dba::ops::cuda::hopper

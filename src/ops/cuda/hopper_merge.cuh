#pragma once

#include <limits>

#include "ops/cuda/hopper_compress.cuh"

namespace dba::ops::cuda::hopper {

/// Parts of sequences that several ranges share: at each place 64 slots.
struct PartStore {
  float* sums;       // (places · 64, d)
  float* reference;  // (places · 64) the score that the weights are relative to
  float* total;      // (places · 64) sum of the weights
  float* kept;       // (places · 64) sum of those that dropout kept
};

inline PartStore part_store(void* workspace, const SlotDivision& division, int width) {
  const int64_t rows = static_cast<int64_t>(division.places()) * kBlockSlots;
  auto* floats = static_cast<float*>(workspace);
  return {floats, floats + rows * width, floats + rows * (width + 1), floats + rows * (width + 2)};
}

inline size_t part_store_bytes(const SlotDivision& division, int width) {
  return static_cast<size_t>(division.places()) * kBlockSlots * (width + 3) * sizeof(float);
}

struct MergeSummaries {
  SequenceBounds bounds;
  SlotDivision division;
  PartStore parts;
  ScoreRowsView rows;
  float keep_scale;
  float* c;
  float* r;
  float* lse;
};

/// Sequences that lie in several ranges: their parts by log-sum-exp, in the order of the ranges. Empty ones: nothing.
cudaError_t launch_merge(const MergeSummaries& merge, cudaStream_t stream);

/// Plain sums over the parts, in the order of the ranges: rows (B, slots, d). Sequences in one range are left alone,
/// empty ones become zeros.
struct MergeSums {
  SequenceBounds bounds;
  SlotDivision division;
  const float* parts;  // (places · 64, d)
  bool two_each;       // each range of a single block leaves two parts, one behind the other
  int slots;
  int width;
  float* out;
};

/// What ranges leave, `stride` floats each; those from `split` on lie in another piece of memory.
struct RangeParts {
  float* parts = nullptr;
  int64_t stride = 0;
  float* rest = nullptr;
  int split = std::numeric_limits<int>::max();

  __host__ __device__ float* of(int range) const {
    return range < split ? parts + range * stride : rest + (range - split) * stride;
  }
};

/// Sums that are made in one launch: out[i] = Σ over ranges of parts.of(range)[offset + i], in order.
struct RangeSums {
  static constexpr int kMost = 5;
  struct One {
    RangeParts parts;
    int64_t offset;
    int ranges;
    SumOut out;
    int64_t size;
  };
  One sum[kMost];
  int count = 0;

  void add(const RangeParts& parts, int64_t offset, int ranges, const SumOut& out, int64_t size) {
    sum[count++] = {parts, offset, ranges, out, size};
  }
};

/// Both, in one launch. Without slots or sequences there is nothing to merge.
cudaError_t launch_sums(const MergeSums& merge, const RangeSums& sums, cudaStream_t stream);

/// Panels of 64 columns that a width is served with: 1, 2 or 4.
inline int panels_for(int width) {
  return width <= 64 ? 1 : width <= 128 ? 2 : 4;
}

inline const char* width_obstacle(Element element, const Matrix& x) {
  if (element == Element::float32) {
    return "the Hopper kernels take float16 and bfloat16";
  }
  if (x.width > 256 || x.width % 8 != 0) {
    return "the Hopper kernels take widths up to 256 that are multiples of 8";
  }
  return nullptr;
}

}  // namespace dba::ops::cuda::hopper

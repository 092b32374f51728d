#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/general_sequences.cuh"
#include "ops/cuda/passes.h"

/// What is left after a pass whose sums over tokens were split over ranges: sequences that span several ranges are
/// merged in the order of the ranges, and sequences without tokens get their results.
namespace dba::ops::cuda::general {

/// Per place: c (places, L, d) not yet divided by the sum of the weights; statistics (places, chunks, L, 3): largest
/// score, sum of the weights relative to it, the same after dropout. Each chunk of c's columns has its own statistics,
/// because its scores may be rounded differently.
struct SummaryPartials {
  float* c = nullptr;
  float* statistics = nullptr;
};

cudaError_t merge_summaries(const CompressArguments& given, const Split& split, int chunks, int chunk_width,
                            const SummaryPartials& partials, cudaStream_t stream);

/// Sums over the tokens of each sequence: (B, count) from (places, count), both `stride` floats a sequence or place.
struct SequenceSums {
  float* sums = nullptr;
  const float* partials = nullptr;
  int64_t count = 0;
  int64_t stride = 0;
};

cudaError_t merge_sequence_sums(const Bounds& bounds, const Split& split, const SequenceSums& sums,
                                cudaStream_t stream);

/// sums (count) = Σ over ranges of partials (ranges, count).
cudaError_t add_ranges(float* sums, const float* partials, int ranges, int64_t count, cudaStream_t stream);

}  // namespace dba::ops::cuda::general

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/passes.h"

namespace dba::ops::cuda {

/// sums[c, i] = Σ of x[c, j] with j ≤ i − before or j ≥ i + after; both (batch, rows, width), contiguous, of `element`.
/// Sums are taken in float32, row by row; the one of what lies before is rounded to `element` until the other comes.
cudaError_t launch_sums_beyond(void* sums, const void* x, Element element, int64_t batch, int64_t rows, int64_t width,
                               int64_t before, int64_t after, cudaStream_t stream);

}  // namespace dba::ops::cuda

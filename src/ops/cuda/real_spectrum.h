#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/passes.h"

namespace dba::ops::cuda {

/// Complex numbers (batch, n, ⌊width/2⌋ + 1) of float32, strides in complex numbers.
struct HalfSpectrum {
  const void* data;
  int64_t batch, n, width;
  int64_t of_batch, of_token, of_column;
};

/// y (batch, n, width), contiguous, of `element`: of the columns that are there the real part, of column width − j that
/// of column j at token −t modulo n.
cudaError_t launch_real_spectrum(void* y, const HalfSpectrum& half, Element element, cudaStream_t stream);

}  // namespace dba::ops::cuda

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/passes.h"

namespace dba::ops::cuda {

/// out = rows (groups, count, width) less the mean over `count`, rounded to `element`. Both contiguous.
cudaError_t centre_rows(void* out, Element element, const float* rows, int64_t groups, int count, int width,
                        cudaStream_t stream);

}  // namespace dba::ops::cuda

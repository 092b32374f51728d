#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/passes.h"

namespace dba::ops::cuda::general {

/// Whether the build has the fused kernels for the current GPU.
bool kernels_exist();

/// to (count) float16 or bfloat16 = from (count), rounded.
cudaError_t round_to_elements(void* to, const float* from, int64_t count, Element element, cudaStream_t stream);

}  // namespace dba::ops::cuda::general

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/passes.h"

namespace dba::ops::cuda {

/// y[i] = exp(min(x[i], 0)) + max(x[i], 0); `count` numbers of `element`, as all of these.
cudaError_t launch_elu_plus_one(void* y, const void* x, Element element, int64_t count, cudaStream_t stream);

/// dx[i] = dy[i] · min(y[i], 1).
cudaError_t launch_elu_plus_one_backward(void* dx, const void* dy, const void* y, Element element, int64_t count,
                                         cudaStream_t stream);

}  // namespace dba::ops::cuda

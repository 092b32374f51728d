#pragma once

#include "ops/cuda/core_call.h"
#include "ops/reference/reference.h"

namespace dba::ops::cuda {

/// dm and dcompressed may be undefined: zero. Three launches in form `paper`, six in form `released`.
reference::CoreGradients core_backward(const CoreCall& call, const CoreDevice& device, const at::Tensor& dm,
                                       const at::Tensor& dcompressed);

}  // namespace dba::ops::cuda

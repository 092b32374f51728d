#pragma once

#include "ops/cuda/core_call.h"
#include "ops/reference/reference.h"

namespace dba::ops::cuda {

/// dm and dcompressed may be undefined: zero. Without `wants_dr` that one stays undefined. The attention between slots
/// has a list of products before it and one behind it in form `paper`, two and two in form `released`.
reference::CoreGradients core_backward(const CoreCall& call, const CoreDevice& device, const at::Tensor& dm,
                                       const at::Tensor& dcompressed, bool wants_dr);

}  // namespace dba::ops::cuda

#pragma once

#include "ops/reference/reference.h"

/// `core` and its gradient over stacks of sequences: what its namesakes in ops/reference compute, in an order that does
/// not depend on the number of threads.
namespace dba::ops::cpu {

CoreResult core(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights, int64_t heads,
                const Dropout& dropout);

reference::CoreGradients core_backward(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights,
                                       int64_t heads, const Dropout& dropout, const at::Tensor& dm,
                                       const at::Tensor& dcompressed);

/// Sequences in a stack: few enough that there are stacks for several threads.
int64_t stacked_sequences(int64_t batch, int64_t d_p);

}  // namespace dba::ops::cpu

#pragma once

#include <ATen/core/Tensor.h>

#include "dba/ops.h"

/// Bias, activation and dropout of a feed-forward network in one pass over its hidden tokens, forward and backward.
namespace dba::ops {

enum class ActivationKind {
  gelu,  ///< x Φ(x), with the error function and not its approximation by a hyperbolic tangent
  relu,
};

/// dropout(act(hidden + bias)), differentiable, of hidden's type; arithmetic and the sum over rows are in the
/// accumulation type.
/// hidden (N, d); bias (d) or absent: that of the linear layer in front, whose gradient then costs no pass. Backward
/// keeps `hidden` alone and recomputes the rest.
/// The mask's entry of row i and column j is that of token i and slot j at kSiteActivation, sequence 0.
/// Under autocast hidden keeps its type, which is the one that autocast gave the product in front.
at::Tensor activate(const at::Tensor& hidden, const at::Tensor& bias, ActivationKind kind, const Dropout& dropout = {});

}  // namespace dba::ops

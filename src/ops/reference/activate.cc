#include "ops/reference/activate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/threshold_backward.h>

#include "ops/checks.h"
#include "ops/reference/drop.h"

namespace dba::ops::reference {
namespace {

using at::Tensor;

/// hidden + bias in the accumulation type.
Tensor before_activation(const ActivateCall& call) {
  const auto type = accumulation_type(call.hidden.scalar_type());
  const auto wide = call.hidden.to(type);
  return call.bias.defined() ? wide + call.bias.to(type) : wide;
}

}  // namespace

Tensor activate(const ActivateCall& call) {
  const auto x = before_activation(call);
  const auto active = call.kind == ActivationKind::gelu ? at::gelu(x) : at::relu(x);
  return drop(active, call.dropout, kSiteActivation).to(call.hidden.scalar_type()).contiguous();
}

ActivateGradients activate_backward(const ActivateCall& call, const Tensor& dy) {
  const auto x = before_activation(call);
  const auto dactive = drop(dy.to(x.scalar_type()), call.dropout, kSiteActivation);
  const auto dx =
      call.kind == ActivationKind::gelu ? at::gelu_backward(dactive, x) : at::threshold_backward(dactive, x, 0);
  return {dx.to(call.hidden.scalar_type()).contiguous(),
          call.bias.defined() ? dx.sum(0).to(call.bias.scalar_type()) : Tensor()};
}

}  // namespace dba::ops::reference

#pragma once

#include "ops/activate_call.h"

/// `activate` as a composition of ordinary operations.
namespace dba::ops::reference {

at::Tensor activate(const ActivateCall& call);

struct ActivateGradients {
  at::Tensor hidden;
  at::Tensor bias;  ///< of the bias's type; undefined where there is none
};

ActivateGradients activate_backward(const ActivateCall& call, const at::Tensor& dy);

}  // namespace dba::ops::reference

#pragma once

#include <string_view>

#include "dba/activate.h"
#include "ops/arguments.h"

/// The arguments of `activate` as one thing, and the checks that all its entries share.
namespace dba::ops {

struct ActivateCall {
  at::Tensor hidden;
  at::Tensor bias;
  ActivationKind kind;
  Dropout dropout;
};

/// Checked.
ActivateCall activate_call(const at::Tensor& hidden, const Optional& bias, std::string_view kind, double p,
                           const Optional& rng);
/// Arguments of a backward come from the autograd node; the kind alone is checked, for it must be understood.
ActivateCall activate_saved(const at::Tensor& hidden, const Optional& bias, std::string_view kind, double p,
                            const Optional& rng);

}  // namespace dba::ops

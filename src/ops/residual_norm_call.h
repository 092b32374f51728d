#pragma once

#include "ops/arguments.h"
#include "ops/reference/residual_norm.h"

/// The arguments of the residual operators as one thing, and the checks that all their entries share.
namespace dba::ops {

struct ResidualNormCall {
  at::Tensor residual;
  Branch branch;  ///< without value: LayerNorm alone
  LayerNormWeights norm;
  bool keep_sum;
  at::ScalarType dtype;  ///< of y
};

/// Checked.
ResidualNormCall residual_norm_call(const at::Tensor& residual, const Optional& branch, const Optional& branch_bias,
                                    const Optional& weight, const Optional& bias, double eps, double p,
                                    const Optional& rng, bool keep_sum, std::optional<at::ScalarType> dtype);
/// Checked.
Branch residual_sum_branch(const at::Tensor& residual, const at::Tensor& branch, const Optional& branch_bias, double p,
                           const Optional& rng);

/// Arguments of a backward come from the autograd node and are not checked.
reference::ResidualNormSaved residual_norm_saved(const at::Tensor& x, const Optional& branch,
                                                 const Optional& branch_bias, const Optional& weight,
                                                 const Optional& bias, const at::Tensor& mean, const at::Tensor& rstd,
                                                 double p, const Optional& rng,
                                                 std::optional<at::ScalarType> branch_dtype);

}  // namespace dba::ops

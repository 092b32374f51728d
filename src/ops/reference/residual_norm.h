#pragma once

#include <ATen/core/Tensor.h>

#include "dba/residual_norm.h"

/// dba/residual_norm.h in plain ATen, for every type and device. Arguments are checked already.
namespace dba::ops::reference {

struct ResidualNorm {
  at::Tensor sum;         ///< as asked for, else (0, d)
  at::Tensor y;           ///< (N, d)
  at::Tensor mean, rstd;  ///< (N) in the accumulation type
};

/// A branch without value: LayerNorm of the residual alone.
ResidualNorm residual_norm(const at::Tensor& residual, const Branch& branch, const LayerNormWeights& norm,
                           bool keep_sum, at::ScalarType dtype);

at::Tensor residual_sum(const at::Tensor& residual, const Branch& branch);

/// What the backward knows of the forward: x is the residual beside branch.value, else the sum.
struct ResidualNormSaved {
  at::Tensor x;
  Branch branch;
  LayerNormWeights norm;
  at::Tensor mean, rstd;
  std::optional<at::ScalarType> branch_dtype;  ///< of the gradient of the branch, where it is wanted
};

/// Undefined where not asked for; those of the weights have the weights' types.
struct ResidualNormGradients {
  at::Tensor residual, branch, branch_bias, weight, bias;
};

ResidualNormGradients residual_norm_backward(const ResidualNormSaved& saved, const at::Tensor& dsum,
                                             const at::Tensor& dy);

/// The members `branch` and `branch_bias` alone; branch.value is not read.
ResidualNormGradients residual_sum_backward(const at::Tensor& dsum, const Branch& branch, at::ScalarType branch_dtype);

}  // namespace dba::ops::reference

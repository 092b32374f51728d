#include "ops/reference/residual_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include "ops/checks.h"
#include "ops/reference/drop.h"

namespace dba::ops::reference {
namespace {

using at::Tensor;

/// The sum in the accumulation type.
Tensor exact_sum(const Tensor& residual, const Branch& branch) {
  const auto type = accumulation_type(residual.scalar_type());
  const auto wide = residual.to(type);
  if (!branch.value.defined()) {
    return wide;
  }
  auto added = branch.value.to(type);
  if (branch.bias.defined()) {
    added = added + branch.bias.to(type);
  }
  return wide + drop(added, branch.dropout, kSiteResidual);
}

}  // namespace

ResidualNorm residual_norm(const Tensor& residual, const Branch& branch, const LayerNormWeights& norm, bool keep_sum,
                           at::ScalarType dtype) {
  ResidualNorm result;
  auto sum = exact_sum(residual, branch);
  const auto type = sum.scalar_type();
  if (keep_sum) {
    result.sum = sum.to(residual.scalar_type()).contiguous();
    sum = result.sum.to(type);
  } else {
    result.sum = at::empty({0, residual.size(1)}, residual.options());
  }
  const auto mean = sum.mean(1, /*keepdim=*/true);
  const auto centred = sum - mean;
  const auto rstd = (centred.square().mean(1, /*keepdim=*/true) + norm.eps).rsqrt();
  auto y = centred * rstd;
  if (norm.weight.defined()) {
    y = y * norm.weight.to(type);
  }
  if (norm.bias.defined()) {
    y = y + norm.bias.to(type);
  }
  result.y = y.to(dtype).contiguous();
  result.mean = mean.squeeze(1);
  result.rstd = rstd.squeeze(1);
  return result;
}

Tensor residual_sum(const Tensor& residual, const Branch& branch) {
  return exact_sum(residual, branch).to(residual.scalar_type()).contiguous();
}

ResidualNormGradients residual_norm_backward(const ResidualNormSaved& saved, const Tensor& dsum, const Tensor& dy) {
  const auto sum = exact_sum(saved.x, saved.branch);
  const auto type = sum.scalar_type();
  const auto rstd = saved.rstd.unsqueeze(1);
  const auto normed = (sum - saved.mean.unsqueeze(1)) * rstd;
  const auto gradient = dy.to(type);
  const auto scaled = saved.norm.weight.defined() ? gradient * saved.norm.weight.to(type) : gradient;
  auto dh = rstd * (scaled - scaled.mean(1, /*keepdim=*/true) - normed * (scaled * normed).mean(1, /*keepdim=*/true));
  if (dsum.defined()) {
    dh = dh + dsum.to(type);
  }
  ResidualNormGradients result;
  if (saved.norm.weight.defined()) {
    result.weight = (gradient * normed).sum(0).to(saved.norm.weight.scalar_type());
  }
  if (saved.norm.bias.defined()) {
    result.bias = gradient.sum(0).to(saved.norm.bias.scalar_type());
  }
  if (saved.branch_dtype || saved.branch.bias.defined()) {
    const auto dropped = drop(dh, saved.branch.dropout, kSiteResidual);
    if (saved.branch_dtype) {
      result.branch = dropped.to(*saved.branch_dtype, /*non_blocking=*/false, /*copy=*/true).contiguous();
    }
    if (saved.branch.bias.defined()) {
      result.branch_bias = dropped.sum(0).to(saved.branch.bias.scalar_type());
    }
  }
  result.residual = dh.to(saved.x.scalar_type()).contiguous();
  return result;
}

ResidualNormGradients residual_sum_backward(const Tensor& dsum, const Branch& branch, at::ScalarType branch_dtype) {
  const auto dropped = drop(dsum.to(accumulation_type(dsum.scalar_type())), branch.dropout, kSiteResidual);
  ResidualNormGradients result;
  result.branch = dropped.to(branch_dtype, /*non_blocking=*/false, /*copy=*/true).contiguous();
  if (branch.bias.defined()) {
    result.branch_bias = dropped.sum(0).to(branch.bias.scalar_type());
  }
  return result;
}

}  // namespace dba::ops::reference

#include "dba/residual_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/residual_norm_call.h"
#include "ops/signatures.h"

namespace dba::ops {
namespace {

using at::Tensor;

/// `wide` beside `narrow` tokens: the same type, or float32 beside a half type.
bool types_fit(at::ScalarType wide, at::ScalarType narrow) {
  return wide == narrow || (wide == at::kFloat && accumulation_type(narrow) == at::kFloat);
}

void check_residual(const char* function, const Tensor& residual) {
  check_shape(function, "residual", residual, {-1, -1});
  TORCH_CHECK(at::isFloatingType(residual.scalar_type()) && residual.size(1) >= 1, "dba::", function,
              ": residual must be of a floating type and have a width of 1 or more, got ", describe(residual));
}

void check_branch(const char* function, const Tensor& residual, const Branch& branch) {
  check_shape(function, "branch", branch.value, residual.sizes());
  TORCH_CHECK(branch.value.device() == residual.device(), "dba::", function,
              ": branch must be on the device of residual, ", residual.device(), ", got ", describe(branch.value));
  TORCH_CHECK(types_fit(residual.scalar_type(), branch.value.scalar_type()), "dba::", function,
              ": branch must be of residual's type ", c10::toString(residual.scalar_type()),
              ", or of float16 or bfloat16 where residual is float32, got ", describe(branch.value),
              "; cast the branch or the residual");
  check_shape(function, "branch_bias", branch.bias, {residual.size(1)}, true);
  check_operand(function, "branch_bias", branch.bias, branch.value);
  check_dropout(function, branch.dropout, residual.device());
}

std::tuple<Tensor, Tensor, Tensor, Tensor> residual_norm_kernel(const Tensor& residual, const Optional& branch,
                                                                const Optional& branch_bias, const Optional& weight,
                                                                const Optional& bias, double eps, double p,
                                                                const Optional& rng, bool keep_sum,
                                                                std::optional<at::ScalarType> dtype) {
  const SettledTypes settled;
  const auto call = residual_norm_call(residual, branch, branch_bias, weight, bias, eps, p, rng, keep_sum, dtype);
  require_reference_allowed("residual_norm", residual);
  const auto result = reference::residual_norm(call.residual, call.branch, call.norm, call.keep_sum, call.dtype);
  return {result.sum, result.y, result.mean, result.rstd};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> residual_norm_meta(const Tensor& residual, const Optional& branch,
                                                              const Optional& branch_bias, const Optional& weight,
                                                              const Optional& bias, double eps, double p,
                                                              const Optional& rng, bool keep_sum,
                                                              std::optional<at::ScalarType> dtype) {
  const auto call = residual_norm_call(residual, branch, branch_bias, weight, bias, eps, p, rng, keep_sum, dtype);
  const auto rows = residual.size(0);
  const auto statistics = residual.options().dtype(accumulation_type(residual.scalar_type()));
  return {at::empty({keep_sum ? rows : 0, residual.size(1)}, residual.options()),
          at::empty(residual.sizes(), residual.options().dtype(call.dtype)), at::empty({rows}, statistics),
          at::empty({rows}, statistics)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> residual_norm_backward_kernel(
    const Tensor& x, const Optional& branch, const Optional& branch_bias, const Optional& weight, const Optional& bias,
    const Tensor& mean, const Tensor& rstd, double p, const Optional& rng, const Optional& dsum, const Tensor& dy,
    std::optional<at::ScalarType> branch_dtype) {
  const SettledTypes settled;
  const auto gradients = reference::residual_norm_backward(
      residual_norm_saved(x, branch, branch_bias, weight, bias, mean, rstd, p, rng, branch_dtype),
      value_or_absent(dsum), dy);
  return {gradients.residual, gradients.branch, gradients.branch_bias, gradients.weight, gradients.bias};
}

Tensor like(const Optional& tensor) {
  return tensor.has_value() ? at::empty_like(*tensor) : Tensor();
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> residual_norm_backward_meta(
    const Tensor& x, const Optional& /*branch*/, const Optional& branch_bias, const Optional& weight,
    const Optional& bias, const Tensor& /*mean*/, const Tensor& /*rstd*/, double /*p*/, const Optional& /*rng*/,
    const Optional& /*dsum*/, const Tensor& /*dy*/, std::optional<at::ScalarType> branch_dtype) {
  const auto dbranch = branch_dtype ? at::empty(x.sizes(), x.options().dtype(*branch_dtype)) : Tensor();
  return {at::empty(x.sizes(), x.options()), dbranch, like(branch_bias), like(weight), like(bias)};
}

Tensor residual_sum_kernel(const Tensor& residual, const Tensor& branch, const Optional& branch_bias, double p,
                           const Optional& rng) {
  const SettledTypes settled;
  const auto added = residual_sum_branch(residual, branch, branch_bias, p, rng);
  require_reference_allowed("residual_sum", residual);
  return reference::residual_sum(residual, added);
}

Tensor residual_sum_meta(const Tensor& residual, const Tensor& branch, const Optional& branch_bias, double p,
                         const Optional& rng) {
  residual_sum_branch(residual, branch, branch_bias, p, rng);
  return at::empty(residual.sizes(), residual.options());
}

std::tuple<Tensor, Tensor> residual_sum_backward_kernel(const Tensor& dsum, const Optional& branch_bias, double p,
                                                        const Optional& rng, at::ScalarType branch_dtype) {
  const SettledTypes settled;
  const auto gradients =
      reference::residual_sum_backward(dsum, {{}, value_or_absent(branch_bias), dropout_of(p, rng)}, branch_dtype);
  return {gradients.branch, gradients.branch_bias};
}

std::tuple<Tensor, Tensor> residual_sum_backward_meta(const Tensor& dsum, const Optional& branch_bias, double /*p*/,
                                                      const Optional& /*rng*/, at::ScalarType branch_dtype) {
  return {at::empty(dsum.sizes(), dsum.options().dtype(branch_dtype)), like(branch_bias)};
}

SumAndNorm call_residual_norm(const Tensor& residual, const Branch& branch, const LayerNormWeights& norm, bool keep_sum,
                              std::optional<at::ScalarType> dtype) {
  static const auto op = typed_operator<signature::ResidualNorm>("dba::residual_norm");
  const auto result =
      op.call(residual, optional(branch.value), optional(branch.bias), optional(norm.weight), optional(norm.bias),
              norm.eps, branch.dropout.p, optional(branch.dropout.rng), keep_sum, dtype);
  return {std::get<0>(result), std::get<1>(result)};
}

}  // namespace

ResidualNormCall residual_norm_call(const Tensor& residual, const Optional& branch, const Optional& branch_bias,
                                    const Optional& weight, const Optional& bias, double eps, double p,
                                    const Optional& rng, bool keep_sum, std::optional<at::ScalarType> dtype) {
  constexpr auto function = "residual_norm";
  check_residual(function, residual);
  const ResidualNormCall call{residual,
                              {value_or_absent(branch), value_or_absent(branch_bias), dropout_of(p, rng)},
                              {value_or_absent(weight), value_or_absent(bias), eps},
                              keep_sum,
                              dtype.value_or(branch.has_value() ? branch->scalar_type() : residual.scalar_type())};
  if (branch.has_value()) {
    check_branch(function, residual, call.branch);
    TORCH_CHECK(call.dtype == branch->scalar_type(), "dba::", function, ": dtype must be branch's type ",
                c10::toString(branch->scalar_type()), " or absent, got ", c10::toString(call.dtype));
  } else {
    TORCH_CHECK(!branch_bias.has_value() && p == 0 && !keep_sum, "dba::", function,
                ": branch must be given with branch_bias, dropout or keep_sum, got nothing");
    TORCH_CHECK(types_fit(residual.scalar_type(), call.dtype), "dba::", function, ": dtype must be residual's type ",
                c10::toString(residual.scalar_type()), ", or float16 or bfloat16 where residual is float32, got ",
                c10::toString(call.dtype));
  }
  for (const auto& [operand, argument] : {std::pair(call.norm.weight, "weight"), std::pair(call.norm.bias, "bias")}) {
    check_shape(function, argument, operand, {residual.size(1)}, true);
    check_operand(function, argument, operand, branch.has_value() ? *branch : residual);
  }
  TORCH_CHECK(eps >= 0, "dba::", function, ": eps must not be negative, got ", eps);
  return call;
}

Branch residual_sum_branch(const Tensor& residual, const Tensor& branch, const Optional& branch_bias, double p,
                           const Optional& rng) {
  check_residual("residual_sum", residual);
  const Branch added{branch, value_or_absent(branch_bias), dropout_of(p, rng)};
  check_branch("residual_sum", residual, added);
  return added;
}

reference::ResidualNormSaved residual_norm_saved(const Tensor& x, const Optional& branch, const Optional& branch_bias,
                                                 const Optional& weight, const Optional& bias, const Tensor& mean,
                                                 const Tensor& rstd, double p, const Optional& rng,
                                                 std::optional<at::ScalarType> branch_dtype) {
  return {x,
          {value_or_absent(branch), value_or_absent(branch_bias), dropout_of(p, rng)},
          {value_or_absent(weight), value_or_absent(bias)},
          mean,
          rstd,
          branch_dtype};
}

Tensor residual_sum(const Tensor& residual, const Branch& branch) {
  static const auto op = typed_operator<signature::ResidualSum>("dba::residual_sum");
  return op.call(residual, branch.value, optional(branch.bias), branch.dropout.p, optional(branch.dropout.rng));
}

Tensor residual_norm(const Tensor& residual, const Branch& branch, const LayerNormWeights& norm) {
  return call_residual_norm(residual, branch, norm, /*keep_sum=*/false, std::nullopt).y;
}

SumAndNorm residual_sum_and_norm(const Tensor& residual, const Branch& branch, const LayerNormWeights& norm) {
  return call_residual_norm(residual, branch, norm, /*keep_sum=*/true, std::nullopt);
}

Tensor layer_norm(const Tensor& x, const LayerNormWeights& norm, std::optional<at::ScalarType> dtype) {
  return call_residual_norm(x, {}, norm, /*keep_sum=*/false, dtype).y;
}

TORCH_LIBRARY_IMPL(dba, CompositeExplicitAutograd, m) {
  m.impl("residual_norm", residual_norm_kernel);
  m.impl("residual_norm_backward", residual_norm_backward_kernel);
  m.impl("residual_sum", residual_sum_kernel);
  m.impl("residual_sum_backward", residual_sum_backward_kernel);
}

TORCH_LIBRARY_IMPL(dba, Meta, m) {
  m.impl("residual_norm", residual_norm_meta);
  m.impl("residual_norm_backward", residual_norm_backward_meta);
  m.impl("residual_sum", residual_sum_meta);
  m.impl("residual_sum_backward", residual_sum_backward_meta);
}

}  // namespace dba::ops

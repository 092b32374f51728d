#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/signatures.h"

/// Autograd and autocast of the residual operators.
namespace dba::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void refuse_double_backward(const char* function) {
  TORCH_CHECK(!at::GradMode::is_enabled(), "dba::", function,
              ": double backward is not supported (the backward was asked to build a graph); use at::layer_norm and "
              "at::dropout, whose gradients PyTorch differentiates again");
}

/// Without dropout the residual and a branch of the same type have one gradient.
bool one_gradient(at::ScalarType residual, at::ScalarType branch, double p) {
  return p == 0 && residual == branch;
}

class ResidualNormNode : public torch::autograd::Function<ResidualNormNode> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& residual, const Optional& branch,
                               const Optional& branch_bias, const Optional& weight, const Optional& bias, double eps,
                               double p, const Optional& rng, bool keep_sum, std::optional<at::ScalarType> dtype) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = typed_operator<signature::ResidualNorm>("dba::residual_norm");
    const auto [sum, y, mean, rstd] =
        op.call(residual, branch, branch_bias, weight, bias, eps, p, rng, keep_sum, dtype);
    ctx->save_for_backward({keep_sum ? sum : residual, keep_sum ? Tensor() : value_or_absent(branch),
                            value_or_absent(branch_bias), value_or_absent(weight), value_or_absent(bias), mean, rstd,
                            value_or_absent(rng)});
    ctx->saved_data["dropout"] = p;
    ctx->saved_data["keep_sum"] = keep_sum;
    ctx->saved_data["dtype"] = static_cast<int64_t>(y.scalar_type());
    ctx->saved_data["branch"] = branch.has_value();
    ctx->set_materialize_grads(false);
    variable_list constants{mean, rstd};
    if (!keep_sum) {
      constants.push_back(sum);
    }
    ctx->mark_non_differentiable(constants);
    return {sum, y, mean, rstd};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    refuse_double_backward("residual_norm");
    const auto saved = ctx->get_saved_variables();
    const auto p = ctx->saved_data["dropout"].toDouble();
    const auto has_branch = ctx->saved_data["branch"].toBool();
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    const auto& x = saved[0];
    const auto shared = one_gradient(x.scalar_type(), dtype, p);
    const auto dy = grads[1].defined() ? grads[1] : at::zeros(x.sizes(), x.options().dtype(dtype));
    static const auto op = typed_operator<signature::ResidualNormBackward>("dba::residual_norm_backward");
    auto [dresidual, dbranch, dbranch_bias, dweight, dbias] =
        op.call(x, optional(saved[1]), optional(saved[2]), optional(saved[3]), optional(saved[4]), saved[5], saved[6],
                p, optional(saved[7]), optional(ctx->saved_data["keep_sum"].toBool() ? grads[0] : Tensor()), dy,
                has_branch && !shared ? std::optional(dtype) : std::nullopt);
    if (has_branch && shared) {
      dbranch = dresidual;
    }
    return {dresidual, dbranch, dbranch_bias, dweight, dbias, {}, {}, {}, {}, {}};
  }
};

class ResidualSumNode : public torch::autograd::Function<ResidualSumNode> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& residual, const Tensor& branch, const Optional& branch_bias,
                        double p, const Optional& rng) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({value_or_absent(branch_bias), value_or_absent(rng)});
    ctx->saved_data["dropout"] = p;
    ctx->saved_data["dtype"] = static_cast<int64_t>(branch.scalar_type());
    static const auto op = typed_operator<signature::ResidualSum>("dba::residual_sum");
    return op.call(residual, branch, branch_bias, p, rng);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    refuse_double_backward("residual_sum");
    const auto saved = ctx->get_saved_variables();
    const auto p = ctx->saved_data["dropout"].toDouble();
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    const auto& dsum = grads[0];
    if (one_gradient(dsum.scalar_type(), dtype, p) && !saved[0].defined()) {
      return {dsum, dsum, {}, {}, {}};
    }
    static const auto op = typed_operator<signature::ResidualSumBackward>("dba::residual_sum_backward");
    auto [dbranch, dbranch_bias] = op.call(dsum, optional(saved[0]), p, optional(saved[1]), dtype);
    return {dsum, dbranch, dbranch_bias, {}, {}};
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor> residual_norm_autograd(const Tensor& residual, const Optional& branch,
                                                                  const Optional& branch_bias, const Optional& weight,
                                                                  const Optional& bias, double eps, double p,
                                                                  const Optional& rng, bool keep_sum,
                                                                  std::optional<at::ScalarType> dtype) {
  const auto out = ResidualNormNode::apply(residual, branch, branch_bias, weight, bias, eps, p, rng, keep_sum, dtype);
  return {out[0], out[1], out[2], out[3]};
}

Tensor residual_sum_autograd(const Tensor& residual, const Tensor& branch, const Optional& branch_bias, double p,
                             const Optional& rng) {
  return ResidualSumNode::apply(residual, branch, branch_bias, p, rng);
}

/// What autocast makes of a branch: its own type beside float32, else the residual's; double is left alone.
template <c10::DeviceType device>
at::ScalarType branch_type(const Tensor& residual) {
  return residual.scalar_type() == at::kFloat ? at::autocast::get_autocast_dtype(device) : residual.scalar_type();
}

template <c10::DeviceType device>
std::tuple<Tensor, Tensor, Tensor, Tensor> residual_norm_autocast(const Tensor& residual, const Optional& branch,
                                                                  const Optional& branch_bias, const Optional& weight,
                                                                  const Optional& bias, double eps, double p,
                                                                  const Optional& rng, bool keep_sum,
                                                                  std::optional<at::ScalarType> dtype) {
  const SettledTypes settled;
  const auto type = branch_type<device>(residual);
  const auto cast = branch.has_value() ? Optional(branch->to(type)) : branch;
  static const auto op = typed_operator<signature::ResidualNorm>("dba::residual_norm");
  return op.call(residual, cast, branch_bias, weight, bias, eps, p, rng, keep_sum, dtype.value_or(type));
}

template <c10::DeviceType device>
Tensor residual_sum_autocast(const Tensor& residual, const Tensor& branch, const Optional& branch_bias, double p,
                             const Optional& rng) {
  const SettledTypes settled;
  static const auto op = typed_operator<signature::ResidualSum>("dba::residual_sum");
  return op.call(residual, branch.to(branch_type<device>(residual)), branch_bias, p, rng);
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, Autograd, m) {
  m.impl("residual_norm", residual_norm_autograd);
  m.impl("residual_sum", residual_sum_autograd);
}

TORCH_LIBRARY_IMPL(dba, AutocastCPU, m) {
  m.impl("residual_norm", residual_norm_autocast<c10::DeviceType::CPU>);
  m.impl("residual_sum", residual_sum_autocast<c10::DeviceType::CPU>);
}

TORCH_LIBRARY_IMPL(dba, AutocastCUDA, m) {
  m.impl("residual_norm", residual_norm_autocast<c10::DeviceType::CUDA>);
  m.impl("residual_sum", residual_sum_autocast<c10::DeviceType::CUDA>);
}

}  // namespace dba::ops

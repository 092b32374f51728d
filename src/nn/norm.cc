#include "dba/nn/norm.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>
#include <torch/utils.h>

#include "nn/named_choice.h"
#include "nn/rows.h"
#include "ops/checks.h"

namespace dba {
namespace {

constexpr NamedChoice<NormKind> kNormKinds[] = {{"layer", NormKind::layer}, {"batch", NormKind::batch}};

}  // namespace

NormKind parse_norm_kind(const std::string& name) {
  return parse_choice("parse_norm_kind", name, kNormKinds);
}

std::string to_string(NormKind kind) {
  return name_of(kind, kNormKinds);
}

TokenNormImpl::TokenNormImpl(TokenNormOptions options_) : options(std::move(options_)) {
  TokenNormImpl::reset();
}

void TokenNormImpl::reset() {
  check_positive("TokenNorm", "d", options.d());
  weight = register_parameter("weight", at::ones({options.d()}));
  bias = register_parameter("bias", at::zeros({options.d()}));
  if (options.kind() == NormKind::batch) {
    running_mean = register_buffer("running_mean", at::zeros({options.d()}));
    running_var = register_buffer("running_var", at::ones({options.d()}));
  }
}

void TokenNormImpl::reset_parameters() {
  torch::nn::init::ones_(weight);
  torch::nn::init::zeros_(bias);
  if (options.kind() == NormKind::batch) {
    running_mean.zero_();
    running_var.fill_(1);
  }
}

void TokenNormImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::TokenNorm(" << options.d() << ", kind=" << to_string(options.kind()) << ", eps=" << options.eps()
         << ")";
}

at::Tensor TokenNormImpl::forward(const at::Tensor& x, const at::Tensor& row_mask) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) == options.d(), "dba::TokenNorm::forward: x must be (N, ", options.d(),
              "), got ", ops::describe(x));
  if (options.kind() == NormKind::layer) {
    return at::layer_norm(x, {options.d()}, weight, bias, options.eps());
  }
  const auto mask = row_mask.defined() ? row_mask : at::ones({x.size(0)}, x.options().dtype(at::kBool));
  return batch_norm(x, mask);
}

at::Tensor TokenNormImpl::batch_norm(const at::Tensor& x, const at::Tensor& row_mask) {
  // Sums over many rows: in float32 where the tokens are narrower.
  const auto wide = x.to(ops::accumulation_type(x.scalar_type()));
  if (!is_training()) {
    const auto scale = weight * (running_var + options.eps()).rsqrt();
    return ((wide - running_mean) * scale + bias).to(x.scalar_type());
  }
  const auto count = row_mask.sum().to(wide.scalar_type());
  const auto divisor = count.clamp_min(1);
  const auto mean = clear_rows(wide, row_mask).sum(0) / divisor;
  const auto centred = clear_rows(wide - mean, row_mask);
  const auto variance = centred.square().sum(0) / divisor;
  {
    torch::NoGradGuard no_grad;
    // A batch without a single token leaves the running statistics alone.
    const auto momentum = (count > 0).to(wide.scalar_type()) * options.momentum();
    const auto unbiased = variance * divisor / (count - 1).clamp_min(1);
    running_mean.add_((mean - running_mean) * momentum);
    running_var.add_((unbiased - running_var) * momentum);
  }
  return (centred * (weight * (variance + options.eps()).rsqrt()) + bias).to(x.scalar_type());
}

}  // namespace dba

#include "dba/activate.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/activate_call.h"
#include "ops/checks.h"
#include "ops/reference/activate.h"
#include "ops/signatures.h"

namespace dba::ops {
namespace {

using at::Tensor;

constexpr const char* kGelu = "gelu";
constexpr const char* kRelu = "relu";

ActivationKind parse_kind(const char* function, std::string_view kind) {
  TORCH_CHECK(kind == kGelu || kind == kRelu, "dba::", function, ": kind must be ", kGelu, " or ", kRelu, ", got \"",
              kind, "\"");
  return kind == kGelu ? ActivationKind::gelu : ActivationKind::relu;
}

Tensor activate_kernel(const Tensor& hidden, const Optional& bias, std::string_view kind, double p,
                       const Optional& rng) {
  const SettledTypes settled;
  const auto call = activate_call(hidden, bias, kind, p, rng);
  require_reference_allowed("activate", hidden);
  return reference::activate(call);
}

Tensor activate_meta(const Tensor& hidden, const Optional& bias, std::string_view kind, double p, const Optional& rng) {
  activate_call(hidden, bias, kind, p, rng);
  return at::empty(hidden.sizes(), hidden.options());
}

std::tuple<Tensor, Tensor> activate_backward_kernel(const Tensor& hidden, const Optional& bias, std::string_view kind,
                                                    double p, const Optional& rng, const Tensor& dy) {
  const SettledTypes settled;
  const auto gradients = reference::activate_backward(activate_saved(hidden, bias, kind, p, rng), dy);
  return {gradients.hidden, gradients.bias};
}

std::tuple<Tensor, Tensor> activate_backward_meta(const Tensor& hidden, const Optional& bias, std::string_view /*kind*/,
                                                  double /*p*/, const Optional& /*rng*/, const Tensor& /*dy*/) {
  return {at::empty(hidden.sizes(), hidden.options()), bias.has_value() ? at::empty_like(*bias) : Tensor()};
}

}  // namespace

ActivateCall activate_call(const Tensor& hidden, const Optional& bias, std::string_view kind, double p,
                           const Optional& rng) {
  constexpr auto function = "activate";
  check_shape(function, "hidden", hidden, {-1, -1});
  TORCH_CHECK(at::isFloatingType(hidden.scalar_type()) && hidden.size(1) >= 1, "dba::", function,
              ": hidden must be of a floating type and have a width of 1 or more, got ", describe(hidden));
  const ActivateCall call{hidden, value_or_absent(bias), parse_kind(function, kind), dropout_of(p, rng)};
  check_shape(function, "bias", call.bias, {hidden.size(1)}, true);
  check_operand(function, "bias", call.bias, hidden);
  check_dropout(function, call.dropout, hidden.device());
  return call;
}

ActivateCall activate_saved(const Tensor& hidden, const Optional& bias, std::string_view kind, double p,
                            const Optional& rng) {
  return {hidden, value_or_absent(bias), parse_kind("activate_backward", kind), dropout_of(p, rng)};
}

Tensor activate(const Tensor& hidden, const Tensor& bias, ActivationKind kind, const Dropout& dropout) {
  static const auto op = typed_operator<signature::Activate>("dba::activate");
  return op.call(hidden, optional(bias), kind == ActivationKind::gelu ? kGelu : kRelu, dropout.p,
                 optional(dropout.rng));
}

TORCH_LIBRARY_IMPL(dba, CompositeExplicitAutograd, m) {
  m.impl("activate", activate_kernel);
  m.impl("activate_backward", activate_backward_kernel);
}

TORCH_LIBRARY_IMPL(dba, Meta, m) {
  m.impl("activate", activate_meta);
  m.impl("activate_backward", activate_backward_meta);
}

}  // namespace dba::ops

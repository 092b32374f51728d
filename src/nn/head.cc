#include "dba/nn/head.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/relu.h>

#include "dba/nn/initialise.h"
#include "nn/named_choice.h"
#include "nn/rows.h"

namespace dba {
namespace {

constexpr NamedChoice<HeadKind> kHeadKinds[] = {{"linear", HeadKind::linear}, {"mlp", HeadKind::mlp}};

}  // namespace

HeadKind parse_head_kind(const std::string& name) {
  return parse_choice("parse_head_kind", name, kHeadKinds);
}

std::string to_string(HeadKind kind) {
  return name_of(kind, kHeadKinds);
}

HeadImpl::HeadImpl(HeadOptions options_) : options(std::move(options_)) {
  HeadImpl::reset();
}

void HeadImpl::reset() {
  check_positive("Head", "classes", options.classes());
  if (options.kind() == HeadKind::linear) {
    linear = register_module("linear", torch::nn::Linear(options.width(), options.classes()));
    return;
  }
  TORCH_CHECK(options.hidden() > 0, "dba::Head: an mlp head needs a positive hidden width, got ", options.hidden(),
              "; give one or use a linear head");
  check_rate("Head", "dropout", options.dropout());
  linear_1 = register_module("linear_1", torch::nn::Linear(options.width(), options.hidden()));
  const auto without_bias = torch::nn::LinearOptions(options.hidden(), options.classes()).bias(false);
  linear_2 = register_module("linear_2", torch::nn::Linear(without_bias));
}

void HeadImpl::reset_parameters() {
  initialise(*this, Initialise::torch_default);
}

void HeadImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::Head(" << to_string(options.kind()) << ", width=" << options.width();
  if (options.kind() == HeadKind::mlp) {
    stream << ", hidden=" << options.hidden();
  }
  stream << ", classes=" << options.classes() << ")";
}

at::Tensor HeadImpl::forward(const at::Tensor& x) {
  if (options.kind() == HeadKind::linear) {
    return linear(x);
  }
  return linear_2(at::dropout(at::relu(linear_1(x)), options.dropout(), is_training()));
}

}  // namespace dba

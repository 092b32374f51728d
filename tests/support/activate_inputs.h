#pragma once

#include "dba/activate.h"
#include "support/comparison.h"
#include "support/error_rule.h"

namespace dba::test {

inline const std::vector<ops::ActivationKind> kActivationKinds = {ops::ActivationKind::gelu, ops::ActivationKind::relu};

inline std::string kind_name(const ::testing::TestParamInfo<ops::ActivationKind>& info) {
  return info.param == ops::ActivationKind::gelu ? "gelu" : "relu";
}

/// Leaves for one call, and the call itself: by the operator, and by ordinary operations of PyTorch on the same leaves.
class ActivateInputs {
 public:
  ActivateInputs(ops::ActivationKind kind_, int64_t rows, int64_t d, double p, uint64_t seed)
      : kind(kind_), dropout{p, at::tensor({int64_t{31}, int64_t{7}}, at::kLong)} {
    Random random(seed);
    hidden = random.normal({rows, d}, 1.5);
    bias = random.normal({d}, 0.5);
    leaves();
  }

  /// The same numbers, rounded to these types.
  ActivateInputs as(at::ScalarType type, at::ScalarType bias_type, at::Device device = at::kCPU) const {
    ActivateInputs copy = *this;
    copy.hidden = hidden.detach().to(device, type);
    copy.bias = bias.defined() ? bias.detach().to(device, bias_type) : bias;
    copy.dropout.rng = dropout.rng.to(device);
    copy.leaves();
    return copy;
  }
  ActivateInputs without_bias() const {
    ActivateInputs copy = *this;
    copy.bias.reset();
    return copy;
  }

  at::Tensor run() const {
    return ops::activate(hidden, bias, kind, dropout);
  }
  at::Tensor plain() const {
    const at::Tensor x = bias.defined() ? hidden + bias.to(hidden.scalar_type()) : hidden;
    const at::Tensor active = kind == ops::ActivationKind::gelu ? at::gelu(x) : at::relu(x);
    if (dropout.p == 0)
      return active;
    const auto zero = at::zeros({1}, dropout.rng.options());
    return active * ops::dropout_mask(dropout, ops::kSiteActivation, zero, zero, hidden.size(0), hidden.size(1),
                                      hidden.scalar_type())
                        .squeeze(0);
  }

  std::vector<Named> named() const {
    std::vector<Named> all = {{"hidden", hidden}};
    if (bias.defined())
      all.push_back({"bias", bias});
    return all;
  }

  /// The output and then the gradients of the named leaves for a fixed gradient of the output.
  std::vector<Named> values_and_gradients(const at::Tensor& output) const {
    Random random(77);
    std::vector<Named> all = {{"output", output.detach()}};
    std::vector<at::Tensor> inputs;
    for (const Named& input : named())
      inputs.push_back(input.tensor);
    const auto gradients =
        torch::autograd::grad({output}, inputs, {in_every_type(random.normal(output.sizes())).to(output.options())});
    for (size_t i = 0; i < inputs.size(); ++i)
      all.push_back({"gradient of " + named()[i].name, gradients[i]});
    return all;
  }

  ops::ActivationKind kind;
  ops::Dropout dropout;
  at::Tensor hidden, bias;

 private:
  void leaves() {
    hidden = hidden.detach().requires_grad_(true);
    if (bias.defined())
      bias = bias.detach().requires_grad_(true);
  }
};

/// The rule of expect_error_of_plain (error_rule.h), for the output and all gradients.
inline void expect_error_of_plain(const ActivateInputs& given) {
  const auto exact = given.as(at::kDouble, at::kDouble);
  const auto wanted = exact.values_and_gradients(exact.plain());
  const auto got = given.values_and_gradients(given.run());
  const auto usual = given.values_and_gradients(given.plain());
  for (size_t i = 0; i < wanted.size(); ++i) {
    expect_error_of_plain(got[i].tensor, usual[i].tensor, wanted[i].tensor, wanted[i].name);
  }
}

}  // namespace dba::test

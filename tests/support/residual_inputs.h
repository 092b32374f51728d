#pragma once

#include "dba/residual_norm.h"
#include "support/comparison.h"
#include "support/error_rule.h"

namespace dba::test {

/// The functions of dba/residual_norm.h.
enum class ResidualForm { norm, sum_and_norm, sum, norm_alone };

inline const std::vector<ResidualForm> kResidualForms = {ResidualForm::norm, ResidualForm::sum_and_norm,
                                                         ResidualForm::sum, ResidualForm::norm_alone};

inline std::string form_name(const ::testing::TestParamInfo<ResidualForm>& info) {
  const std::vector<std::string> names = {"norm", "sum_and_norm", "sum", "norm_alone"};
  return names[static_cast<size_t>(info.param)];
}

/// Leaves for one call, and the call itself: by the operator, and by ordinary operations of PyTorch on the same leaves.
class ResidualInputs {
 public:
  ResidualInputs(ResidualForm form_, int64_t rows, int64_t d, double p, uint64_t seed)
      : form(form_), dropout{p, at::tensor({int64_t{31}, int64_t{7}}, at::kLong)} {
    Random random(seed);
    residual = random.normal({rows, d}) + 0.5;
    branch = random.normal({rows, d});
    branch_bias = random.normal({d});
    weight = random.normal({d}) + 1.0;
    bias = random.normal({d});
    leaves();
  }

  /// The same numbers, rounded to these types; operands on columns have the accumulation type of the branch.
  ResidualInputs as(at::ScalarType residual_type, at::ScalarType branch_type, at::Device device = at::kCPU) const {
    ResidualInputs copy = *this;
    const auto columns = branch_type == at::kDouble ? at::kDouble : at::kFloat;
    copy.residual = residual.detach().to(device, residual_type);
    copy.branch = branch.detach().to(device, branch_type);
    for (auto member : {&ResidualInputs::branch_bias, &ResidualInputs::weight, &ResidualInputs::bias})
      copy.*member = (this->*member).detach().to(device, columns);
    copy.dropout.rng = dropout.rng.to(device);
    copy.leaves();
    return copy;
  }
  ResidualInputs exact() const {
    return as(at::kDouble, at::kDouble);
  }

  /// y, or the sum, or both.
  std::vector<at::Tensor> run() const {
    const ops::Branch added{branch, branch_bias, dropout};
    const ops::LayerNormWeights norm{weight, bias, kEps};
    switch (form) {
      case ResidualForm::norm:
        return {ops::residual_norm(residual, added, norm)};
      case ResidualForm::sum_and_norm: {
        const auto both = ops::residual_sum_and_norm(residual, added, norm);
        return {both.sum, both.y};
      }
      case ResidualForm::sum:
        return {ops::residual_sum(residual, added)};
      case ResidualForm::norm_alone:
        break;
    }
    return {ops::layer_norm(residual, norm, branch.scalar_type())};
  }

  std::vector<at::Tensor> plain() const {
    const auto type = residual.scalar_type();
    const auto normed = [&](const at::Tensor& h) {
      return at::layer_norm(h, {h.size(1)}, weight.to(type), bias.to(type), kEps).to(branch.scalar_type());
    };
    if (form == ResidualForm::norm_alone)
      return {normed(residual)};
    at::Tensor added = branch + branch_bias.to(branch.scalar_type());
    if (dropout.p > 0) {
      const auto zero = at::zeros({1}, dropout.rng.options());
      added = added * ops::dropout_mask(dropout, ops::kSiteResidual, zero, zero, branch.size(0), branch.size(1),
                                        branch.scalar_type())
                          .squeeze(0);
    }
    const at::Tensor sum = residual + added;
    if (form == ResidualForm::sum)
      return {sum};
    return form == ResidualForm::norm ? std::vector<at::Tensor>{normed(sum)}
                                      : std::vector<at::Tensor>{sum, normed(sum)};
  }

  std::vector<Named> named() const {
    std::vector<Named> all = {{"residual", residual}};
    if (form != ResidualForm::norm_alone) {
      all.push_back({"branch", branch});
      all.push_back({"branch_bias", branch_bias});
    }
    if (form != ResidualForm::sum) {
      all.push_back({"weight", weight});
      all.push_back({"bias", bias});
    }
    return all;
  }

  /// The outputs and then the gradients of the named leaves for fixed gradients of the outputs.
  std::vector<Named> values_and_gradients(const std::vector<at::Tensor>& outputs) const {
    Random random(77);
    std::vector<Named> all;
    std::vector<at::Tensor> above, inputs;
    for (const at::Tensor& output : outputs) {
      all.push_back({"output", output.detach()});
      above.push_back(in_every_type(random.normal(output.sizes())).to(output.options()));
    }
    for (const Named& input : named())
      inputs.push_back(input.tensor);
    const auto gradients = torch::autograd::grad(outputs, inputs, above);
    for (size_t i = 0; i < inputs.size(); ++i)
      all.push_back({"gradient of " + named()[i].name, gradients[i]});
    return all;
  }

  static constexpr double kEps = 1e-5;
  ResidualForm form;
  ops::Dropout dropout;
  at::Tensor residual, branch, branch_bias, weight, bias;

 private:
  void leaves() {
    for (auto member : {&ResidualInputs::residual, &ResidualInputs::branch, &ResidualInputs::branch_bias,
                        &ResidualInputs::weight, &ResidualInputs::bias})
      this->*member = (this->*member).detach().requires_grad_(true);
  }
};

/// The rule of expect_error_of_plain (error_rule.h), for the outputs and all gradients.
inline void expect_error_of_plain(const ResidualInputs& given) {
  const auto exact = given.exact();
  const auto wanted = exact.values_and_gradients(exact.plain());
  const auto got = given.values_and_gradients(given.run());
  const auto usual = given.values_and_gradients(given.plain());
  for (size_t i = 0; i < wanted.size(); ++i) {
    expect_error_of_plain(got[i].tensor, usual[i].tensor, wanted[i].tensor, wanted[i].name);
  }
}

}  // namespace dba::test

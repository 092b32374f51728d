#include "zoo/elu_plus_one.h"

#include <torch/library.h>
#include <torch/torch.h>

#include "nn/transformed.h"
#include "ops/arguments.h"

namespace dba::zoo {
namespace {

using at::Tensor;

Tensor forward_operator(const Tensor& x) {
  static const auto operation = ops::typed_operator<Tensor(const Tensor&)>("dba::elu_plus_one_forward");
  return operation.call(x);
}

Tensor backward_operator(const Tensor& dy, const Tensor& feature) {
  static const auto operation = ops::typed_operator<Tensor(const Tensor&, const Tensor&)>("dba::elu_plus_one_backward");
  return operation.call(dy, feature);
}

struct EluPlusOne : torch::autograd::Function<EluPlusOne> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    const auto feature = forward_operator(x);
    context->save_for_backward({feature});
    return feature;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto feature = context->get_saved_variables()[0];
    return {at::GradMode::is_enabled() ? elu_plus_one_backward_composed(gradients[0], feature)
                                       : backward_operator(gradients[0], feature)};
  }
};

Tensor backward_kernel(const Tensor& dy, const Tensor& feature) {
  check_elu_plus_one_backward(dy, feature);
  return elu_plus_one_backward_composed(dy, feature);
}

TORCH_LIBRARY_FRAGMENT(dba, m) {
  m.def("elu_plus_one_forward(Tensor x) -> Tensor");
  m.def("elu_plus_one_backward(Tensor dy, Tensor feature) -> Tensor");
}

TORCH_LIBRARY_IMPL(dba, CompositeExplicitAutograd, m) {
  m.impl("elu_plus_one_forward", elu_plus_one_composed);
  m.impl("elu_plus_one_backward", backward_kernel);
}

}  // namespace

void check_elu_plus_one_backward(const at::Tensor& dy, const at::Tensor& feature) {
  TORCH_CHECK(dy.sizes() == feature.sizes() && dy.device() == feature.device(),
              "dba::elu_plus_one_backward: dy must be of the sizes and on the device of feature, ", feature.sizes(),
              " on ", feature.device(), ", got ", dy.sizes(), " on ", dy.device());
}

at::Tensor elu_plus_one(const at::Tensor& x) {
  return is_transformed(x) ? x.clamp_max(0).exp() + x.relu() : EluPlusOne::apply(x);
}

at::Tensor elu_plus_one_composed(const at::Tensor& x) {
  return x.clamp_max(0).exp_().add_(x.clamp_min(0));
}

at::Tensor elu_plus_one_backward_composed(const at::Tensor& dy, const at::Tensor& feature) {
  return dy * feature.clamp_max(1);
}

}  // namespace dba::zoo

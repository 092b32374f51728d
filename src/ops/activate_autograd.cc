#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/signatures.h"

/// Autograd of `activate`. Autocast has nothing to add: the operator keeps the type of what it is given.
namespace dba::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class ActivateNode : public torch::autograd::Function<ActivateNode> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden, const Optional& bias, std::string_view kind,
                        double p, const Optional& rng) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({hidden, value_or_absent(bias), value_or_absent(rng)});
    ctx->saved_data["kind"] = std::string(kind);
    ctx->saved_data["dropout"] = p;
    static const auto op = typed_operator<signature::Activate>("dba::activate");
    return op.call(hidden, bias, kind, p, rng);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "dba::activate: double backward is not supported (the backward was asked to build a graph); use "
                "at::gelu or at::relu and at::dropout, whose gradients PyTorch differentiates again");
    const auto saved = ctx->get_saved_variables();
    static const auto op = typed_operator<signature::ActivateBackward>("dba::activate_backward");
    auto [dhidden, dbias] = op.call(saved[0], optional(saved[1]), ctx->saved_data["kind"].toStringView(),
                                    ctx->saved_data["dropout"].toDouble(), optional(saved[2]), grads[0]);
    return {dhidden, dbias, {}, {}, {}};
  }
};

Tensor activate_autograd(const Tensor& hidden, const Optional& bias, std::string_view kind, double p,
                         const Optional& rng) {
  return ActivateNode::apply(hidden, bias, kind, p, rng);
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, Autograd, m) {
  m.impl("activate", activate_autograd);
}

}  // namespace dba::ops

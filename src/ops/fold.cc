#include "ops/fold.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/checks.h"

namespace dba::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<Tensor> listed(const OptionalList& biases) {
  std::vector<Tensor> result;
  for (const std::optional<Tensor> bias : biases) {
    result.push_back(value_or_absent(bias));
  }
  return result;
}

OptionalList listed(const std::vector<Tensor>& biases) {
  OptionalList result;
  for (const auto& bias : biases) {
    result.push_back(optional(bias));
  }
  return result;
}

bool any_defined(const std::vector<Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) { return tensor.defined(); });
}

/// `operand` may be absent.
void check_device(const char* argument, const Tensor& operand, const Tensor& z) {
  TORCH_CHECK(!operand.defined() || operand.device() == z.device(), "dba::fold: z and ", argument,
              " must be on one device, got ", describe(z), " and ", describe(operand));
}

/// z as (B, H, d_p, w).
Tensor slots_by_head(const Tensor& z, at::ScalarType type, int64_t heads) {
  const auto batch = z.dim() == 3 ? z.size(0) : 1;
  return z.to(type).reshape({batch, z.size(-2), heads, z.size(-1) / heads}).transpose(1, 2);
}

std::tuple<Tensor, Tensor> fold_stack_kernel(const Tensor& z, at::TensorList weights, const OptionalList& biases,
                                             const Optional& tail, const Optional& tail_bias, int64_t heads,
                                             double scale) {
  const SettledTypes settled;
  const FoldCall call(z, weights, biases, tail, tail_bias, heads, scale);
  return reference::fold(call);
}

std::vector<Tensor> fold_stack_backward_kernel(const Tensor& z, at::TensorList weights, const OptionalList& biases,
                                               int64_t heads, double scale, const Optional& drows,
                                               const Optional& dbias) {
  const SettledTypes settled;
  const FoldCall call(z, weights, biases, {}, {}, heads, scale);
  return reference::fold_backward(call, value_or_absent(drows), value_or_absent(dbias));
}

/// Operands: z, the weights, the biases, tail, tail_bias; `present` says which of them are given.
class FoldNode : public torch::autograd::Function<FoldNode> {
 public:
  static variable_list forward(AutogradContext* ctx, at::TensorList operands, const std::vector<int64_t>& present,
                               int64_t heads, double scale) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto all = unpacked(operands, present);
    const auto call = called(all, heads, scale);
    ctx->save_for_backward(all);
    ctx->set_materialize_grads(false);
    ctx->saved_data["present"] = present;
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["scale"] = scale;
    static const auto op = typed_operator<signature::FoldStack>("dba::fold_stack");
    auto [rows, bias] =
        op.call(call.z, call.weights, listed(call.biases), optional(call.tail), optional(call.tail_bias), heads, scale);
    return {rows, bias};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto all = ctx->get_saved_variables();
    const auto present = ctx->saved_data["present"].toIntVector();
    const auto call = called(all, ctx->saved_data["heads"].toInt(), ctx->saved_data["scale"].toDouble());
    // Differentiable once more where a graph of the gradients is asked for.
    static const auto op = typed_operator<signature::FoldStackBackward>("dba::fold_stack_backward");
    const auto dbias = call.has_bias() ? grads[1] : Tensor();
    const auto gradients = at::GradMode::is_enabled() ? reference::fold_backward(call, grads[0], dbias)
                                                      : op.call(call.z, call.weights, listed(call.biases), call.heads,
                                                                call.scale, optional(grads[0]), optional(dbias));
    variable_list result = gradients;
    const auto behind = [&](const Tensor& gradient, int64_t dim, const Tensor& operand) {
      return gradient.defined()
                 ? gradient.narrow(dim, call.folded_rows(), call.rows() - call.folded_rows()).to(operand.scalar_type())
                 : Tensor();
    };
    if (call.tail.defined()) {
      result.push_back(behind(grads[0], 0, call.tail));
    }
    if (call.tail_bias.defined()) {
      result.push_back(behind(dbias, 0, call.tail_bias));
    }
    result.resize(result.size() + 3);
    return result;
  }

 private:
  static variable_list unpacked(at::TensorList operands, const std::vector<int64_t>& present) {
    variable_list all;
    size_t next = 0;
    for (const auto flag : present) {
      all.push_back(flag != 0 ? operands[next++] : Tensor());
    }
    return all;
  }
  static FoldCall called(const variable_list& all, int64_t heads, double scale) {
    const auto groups = static_cast<int64_t>(all.size() - 3) / 2;
    FoldCall call;
    call.z = all.front();
    call.weights.assign(all.begin() + 1, all.begin() + 1 + groups);
    call.biases.assign(all.begin() + 1 + groups, all.begin() + 1 + 2 * groups);
    call.tail = all[all.size() - 2];
    call.tail_bias = all.back();
    call.heads = heads;
    call.scale = scale;
    return call;
  }
};

std::tuple<Tensor, Tensor> fold_stack_autograd(const Tensor& z, at::TensorList weights, const OptionalList& biases,
                                               const Optional& tail, const Optional& tail_bias, int64_t heads,
                                               double scale) {
  const FoldCall call(z, weights, biases, tail, tail_bias, heads, scale);
  variable_list all{call.z};
  all.insert(all.end(), call.weights.begin(), call.weights.end());
  all.insert(all.end(), call.biases.begin(), call.biases.end());
  all.insert(all.end(), {call.tail, call.tail_bias});
  variable_list operands;
  std::vector<int64_t> present;
  for (const auto& tensor : all) {
    present.push_back(tensor.defined() ? 1 : 0);
    if (tensor.defined()) {
      operands.push_back(tensor);
    }
  }
  const auto out = FoldNode::apply(at::TensorList(operands), present, heads, scale);
  return {out[0], out[1]};
}

std::tuple<Tensor, Tensor> fold_kernel(const Tensor& z, const Tensor& weight, const Optional& bias, int64_t heads,
                                       double scale) {
  return fold_stack(z, {weight}, {value_or_absent(bias)}, {}, {}, heads, scale);
}

}  // namespace

FoldCall::FoldCall(const Tensor& z_, at::TensorList weights_, const OptionalList& biases_, const Optional& tail_,
                   const Optional& tail_bias_, int64_t heads_, double scale_)
    : z(z_),
      weights(weights_.vec()),
      biases(listed(biases_)),
      tail(value_or_absent(tail_)),
      tail_bias(value_or_absent(tail_bias_)),
      heads(heads_),
      scale(scale_) {
  TORCH_CHECK(z.dim() == 2 || z.dim() == 3, "dba::fold: z must be of shape (d_p, H·w) or (B, d_p, H·w), got ",
              describe(z));
  TORCH_CHECK(!weights.empty(), "dba::fold: weights must hold one projection or more, got none");
  biases.resize(biases.empty() ? weights.size() : biases.size());
  TORCH_CHECK(biases.size() == weights.size(), "dba::fold: biases must be as many as the weights, ", weights.size(),
              ", or none, got ", biases.size());
  check_heads("fold", heads, "the width of z", z.size(-1));
  for (size_t i = 0; i < weights.size(); ++i) {
    check_shape("fold", "weight", weights[i], {z.size(-1), i == 0 ? -1 : weights.front().size(1)});
    check_shape("fold", "bias", biases[i], {z.size(-1)}, true);
    check_device("weight", weights[i], z);
    check_device("bias", biases[i], z);
  }
  TORCH_CHECK(tail.defined() || !tail_bias.defined(), "dba::fold: tail_bias must be absent without a tail, got ",
              describe(tail_bias));
  if (tail.defined()) {
    TORCH_CHECK(z.dim() == 2, "dba::fold: tail must be absent where z is given for each sequence, got ", describe(tail),
                "; hand its rows on as shared ones");
    check_shape("fold", "tail", tail, {-1, weights.front().size(1)});
    check_shape("fold", "tail_bias", tail_bias, {tail.size(0)}, true);
    check_device("tail", tail, z);
    check_device("tail_bias", tail_bias, z);
  }
}

at::ScalarType FoldCall::type() const {
  auto result = z.scalar_type();
  for (const auto& weight : weights) {
    result = c10::promoteTypes(result, weight.scalar_type());
  }
  return tail.defined() ? c10::promoteTypes(result, tail.scalar_type()) : result;
}

bool FoldCall::has_bias() const {
  return any_defined(biases) || tail_bias.defined();
}

namespace reference {

std::tuple<Tensor, Tensor> fold(const FoldCall& call) {
  const auto type = call.type();
  const auto slots = slots_by_head(call.z, type, call.heads) * call.scale;
  const auto batch = slots.size(0), width = slots.size(3), group_rows = call.heads * call.d_p();
  std::vector<Tensor> rows, biases;
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const auto weight = call.weights[i].to(type).view({call.heads, width, call.d()});
    rows.push_back(at::matmul(slots, weight).reshape({batch, group_rows, call.d()}));
    const auto& bias = call.biases[i];
    if (call.has_bias()) {
      biases.push_back(bias.defined()
                           ? at::matmul(slots, bias.to(type).view({call.heads, width, 1})).reshape({batch, group_rows})
                           : at::zeros({batch, group_rows}, slots.options()));
    }
  }
  if (call.tail.defined()) {
    rows.push_back(call.tail.to(type).unsqueeze(0));
    if (call.has_bias()) {
      biases.push_back(call.tail_bias.defined() ? call.tail_bias.to(type).unsqueeze(0)
                                                : at::zeros({1, call.tail.size(0)}, slots.options()));
    }
  }
  auto all_rows = rows.size() == 1 ? rows.front() : at::cat(rows, 1);
  auto all_biases = biases.empty()       ? at::empty({0}, slots.options())
                    : biases.size() == 1 ? biases.front()
                                         : at::cat(biases, 1);
  if (!call.each()) {
    all_rows = all_rows.squeeze(0);
    all_biases = call.has_bias() ? all_biases.squeeze(0) : all_biases;
  }
  return {all_rows, all_biases};
}

std::vector<Tensor> fold_backward(const FoldCall& call, const Tensor& drows, const Tensor& dbias) {
  const auto type = call.type();
  const auto slots = slots_by_head(call.z, type, call.heads);
  const auto batch = slots.size(0), width = slots.size(3), group_rows = call.heads * call.d_p();
  const auto groups = static_cast<int64_t>(call.weights.size());
  auto dslots = at::zeros(slots.sizes(), slots.options());
  std::vector<Tensor> dweights, dbiases;
  for (int64_t i = 0; i < groups; ++i) {
    const auto& weight = call.weights[static_cast<size_t>(i)];
    const auto& bias = call.biases[static_cast<size_t>(i)];
    if (drows.defined()) {
      const auto of_group =
          drows.narrow(-2, i * group_rows, group_rows).reshape({batch, call.heads, call.d_p(), call.d()});
      dslots = dslots + at::matmul(of_group, weight.to(type).view({call.heads, width, call.d()}).transpose(1, 2));
      dweights.push_back((at::matmul(slots.transpose(2, 3), of_group).sum(0).reshape(weight.sizes()) * call.scale)
                             .to(weight.scalar_type()));
    } else {
      dweights.push_back(at::zeros(weight.sizes(), weight.options()));
    }
    if (bias.defined() && dbias.defined()) {
      const auto of_group = dbias.narrow(-1, i * group_rows, group_rows).reshape({batch, call.heads, call.d_p(), 1});
      dslots = dslots + at::matmul(of_group, bias.to(type).view({call.heads, 1, width}));
      dbiases.push_back(
          ((slots * of_group).sum(at::IntArrayRef({0, 2})).reshape(bias.sizes()) * call.scale).to(bias.scalar_type()));
    } else if (bias.defined()) {
      dbiases.push_back(at::zeros(bias.sizes(), bias.options()));
    }
  }
  std::vector<Tensor> result{(dslots.transpose(1, 2).reshape(call.z.sizes()) * call.scale).to(call.z.scalar_type())};
  result.insert(result.end(), dweights.begin(), dweights.end());
  result.insert(result.end(), dbiases.begin(), dbiases.end());
  return result;
}

}  // namespace reference

std::pair<Tensor, Tensor> fold_stack(const Tensor& z, const std::vector<Tensor>& weights,
                                     const std::vector<Tensor>& biases, const Tensor& tail, const Tensor& tail_bias,
                                     int64_t heads, double scale) {
  static const auto op = typed_operator<signature::FoldStack>("dba::fold_stack");
  auto [rows, bias] = op.call(z, weights, listed(biases), optional(tail), optional(tail_bias), heads, scale);
  return {rows, any_defined(biases) || tail_bias.defined() ? bias : Tensor()};
}

std::pair<Tensor, Tensor> fold(const Tensor& z, const Tensor& weight, const Tensor& bias, int64_t heads, double scale) {
  static const auto op = typed_operator<signature::Fold>("dba::fold");
  auto [rows, row_bias] = op.call(z, weight, optional(bias), heads, scale);
  return {rows, row_bias};
}

TORCH_LIBRARY_IMPL(dba, CompositeImplicitAutograd, m) {
  m.impl("fold", fold_kernel);
}

TORCH_LIBRARY_IMPL(dba, CompositeExplicitAutograd, m) {
  m.impl("fold_stack", fold_stack_kernel);
  m.impl("fold_stack_backward", fold_stack_backward_kernel);
}

TORCH_LIBRARY_IMPL(dba, Autograd, m) {
  m.impl("fold_stack", fold_stack_autograd);
}

}  // namespace dba::ops

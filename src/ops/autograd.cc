#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/signatures.h"

/// The autograd nodes. Each takes its differentiable operands as one list of those that are present, because PyTorch's
/// Function has no place for absent tensors inside a list.
namespace dba::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Which entries of a fixed list of operands are present.
struct Presence {
  std::vector<int64_t> flags;

  variable_list pack(const variable_list& all) {
    variable_list present;
    for (const auto& tensor : all) {
      flags.push_back(tensor.defined() ? 1 : 0);
      if (tensor.defined()) {
        present.push_back(tensor);
      }
    }
    return present;
  }
  variable_list unpack(at::TensorList present) const {
    variable_list all;
    size_t next = 0;
    for (const auto flag : flags) {
      all.push_back(flag != 0 ? present[next++] : Tensor());
    }
    return all;
  }
  /// The gradients of the present entries, then an undefined one for each of the `others` that are no operands.
  variable_list gradients(const variable_list& all, size_t others) const {
    variable_list result;
    for (size_t i = 0; i < flags.size(); ++i) {
      if (flags[i] != 0) {
        result.push_back(all[i]);
      }
    }
    result.resize(result.size() + others);
    return result;
  }
};

/// The arguments of a node that are not differentiated.
struct Settings {
  Tensor begin, end, rng;
  int64_t linear_rows = 0;
  int64_t heads = 1;
  bool linear = false;
  double dropout = 0.0;

  void save(AutogradContext* ctx, const Presence& presence, variable_list tensors) const {
    tensors.insert(tensors.end(), {begin, end, rng});
    ctx->save_for_backward(std::move(tensors));
    ctx->set_materialize_grads(false);
    ctx->saved_data["presence"] = presence.flags;
    ctx->saved_data["linear_rows"] = linear_rows;
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["linear"] = linear;
    ctx->saved_data["dropout"] = dropout;
  }
  static Settings load(AutogradContext* ctx, const variable_list& saved) {
    const auto count = saved.size();
    Settings settings;
    settings.begin = saved[count - 3];
    settings.end = saved[count - 2];
    settings.rng = saved[count - 1];
    settings.linear_rows = ctx->saved_data["linear_rows"].toInt();
    settings.heads = ctx->saved_data["heads"].toInt();
    settings.linear = ctx->saved_data["linear"].toBool();
    settings.dropout = ctx->saved_data["dropout"].toDouble();
    return settings;
  }
};

Presence saved_presence(AutogradContext* ctx) {
  return {ctx->saved_data["presence"].toIntVector()};
}

Tensor zeros_unless_defined(const Tensor& gradient, at::IntArrayRef sizes, const at::TensorOptions& options) {
  return gradient.defined() ? gradient : at::zeros(sizes, options);
}

void refuse_double_backward(const char* function) {
  TORCH_CHECK(!at::GradMode::is_enabled(), "dba::", function,
              ": double backward is not supported (the backward was asked to build a graph); use the direct order, "
              "whose gradients PyTorch differentiates again");
}

/// Operands: x, each, each_bias, shared, shared_bias.
class CompressNode : public torch::autograd::Function<CompressNode> {
 public:
  static variable_list forward(AutogradContext* ctx, at::TensorList operands, const Presence& presence,
                               const Settings& settings) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto all = presence.unpack(operands);
    const auto summary =
        compress(all[0], {settings.begin, settings.end, all[0].size(0)},
                 {all[1], all[2], all[3], all[4], settings.linear_rows}, {settings.dropout, settings.rng});
    auto saved = all;
    saved.insert(saved.end(), {summary.c, summary.r, summary.lse});
    settings.save(ctx, presence, std::move(saved));
    return {summary.c, summary.r, summary.lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    refuse_double_backward("compress");
    const auto saved = ctx->get_saved_variables();
    const auto s = Settings::load(ctx, saved);
    static const auto op = typed_operator<signature::CompressBackward>("dba::compress_backward");
    auto [dx, deach, deach_bias, dshared, dshared_bias] =
        op.call(saved[0], s.begin, s.end, optional(saved[1]), optional(saved[2]), optional(saved[3]),
                optional(saved[4]), s.linear_rows, s.dropout, optional(s.rng), saved[5], saved[6], saved[7],
                optional(grads[0]), optional(grads[1]), optional(grads[2]));
    return saved_presence(ctx).gradients({dx, deach, deach_bias, dshared, dshared_bias}, 2);
  }
};

/// Operands: x, rows, bias, m, out_bias.
class RestoreNode : public torch::autograd::Function<RestoreNode> {
 public:
  static Tensor forward(AutogradContext* ctx, at::TensorList operands, const Presence& presence,
                        const Settings& settings) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto all = presence.unpack(operands);
    settings.save(ctx, presence, all);
    return restore(all[0], {settings.begin, settings.end, all[0].size(0)}, all[1], all[2], all[3], all[4],
                   settings.heads, settings.linear, {settings.dropout, settings.rng});
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    refuse_double_backward("restore");
    const auto saved = ctx->get_saved_variables();
    const auto s = Settings::load(ctx, saved);
    const auto dy = zeros_unless_defined(grads[0], {saved[0].size(0), saved[3].size(2)}, saved[0].options());
    static const auto op = typed_operator<signature::RestoreBackward>("dba::restore_backward");
    auto [dx, drows, dbias, dm, dout_bias] =
        op.call(saved[0], s.begin, s.end, saved[1], optional(saved[2]), saved[3], optional(saved[4]), s.heads, s.linear,
                s.dropout, optional(s.rng), dy);
    return saved_presence(ctx).gradients({dx, drows, dbias, dm, dout_bias}, 2);
  }
};

/// The gradients of core's weights, absent ones undefined, behind those of c and r.
variable_list core_gradients(const Tensor& c, const Tensor& r, const CoreWeights& weights, const Settings& s,
                             const Tensor& dm, const Tensor& dcompressed) {
  static const auto op = typed_operator<signature::CoreBackward>("dba::core_backward");
  const auto present = op.call(c, r, core_weight_list(weights), s.heads, s.dropout, optional(s.rng), optional(dm),
                               optional(dcompressed));
  variable_list gradients{present[0], present[1]};
  size_t next = 2;
  for (const auto member : core_weight_members()) {
    gradients.push_back((weights.*member).defined() ? present[next++] : Tensor());
  }
  return gradients;
}

void append(variable_list& list, const CoreWeights& weights) {
  for (const auto member : core_weight_members()) {
    list.push_back(weights.*member);
  }
}

CoreWeights core_weights_from(const variable_list& list, size_t first) {
  CoreWeights weights;
  for (const auto member : core_weight_members()) {
    weights.*member = list[first++];
  }
  return weights;
}

/// Operands: c, r, the weights.
class CoreNode : public torch::autograd::Function<CoreNode> {
 public:
  static variable_list forward(AutogradContext* ctx, at::TensorList operands, const Presence& presence,
                               const Settings& settings) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto all = presence.unpack(operands);
    settings.save(ctx, presence, all);
    const auto result =
        core(all[0], all[1], core_weights_from(all, 2), settings.heads, {settings.dropout, settings.rng});
    return {result.m, result.c};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    refuse_double_backward("core");
    const auto saved = ctx->get_saved_variables();
    const auto s = Settings::load(ctx, saved);
    return saved_presence(ctx).gradients(
        core_gradients(saved[0], saved[1], core_weights_from(saved, 2), s, grads[0], grads[1]), 2);
  }
};

/// The whole layer. Operands: x, each, each_bias, shared, shared_bias, restore_rows, restore_bias, out_bias, the
/// weights of the core. Saved besides: the summary and m.
class AttentionNode : public torch::autograd::Function<AttentionNode> {
 public:
  static constexpr size_t kFirstWeight = 8;

  static variable_list forward(AutogradContext* ctx, at::TensorList operands, const Presence& presence,
                               const Settings& settings) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto all = presence.unpack(operands);
    static const auto op = typed_operator<signature::AttentionForward>("dba::attention_forward");
    auto [y, compressed, c, r, lse, m] = op.call(
        all[0], settings.begin, settings.end, optional(all[1]), optional(all[2]), optional(all[3]), optional(all[4]),
        settings.linear_rows, core_weight_list(core_weights_from(all, kFirstWeight)), all[5], optional(all[6]),
        optional(all[7]), settings.heads, settings.linear, settings.dropout, optional(settings.rng));
    auto saved = all;
    saved.insert(saved.end(), {c, r, lse, m});
    settings.save(ctx, presence, std::move(saved));
    return {y, compressed};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    refuse_double_backward("attention");
    const auto saved = ctx->get_saved_variables();
    const auto s = Settings::load(ctx, saved);
    const auto& x = saved[0];
    const auto first_summary = kFirstWeight + kCoreWeights;
    const auto& c = saved[first_summary];
    const auto& r = saved[first_summary + 1];
    const auto& lse = saved[first_summary + 2];
    const auto& m = saved[first_summary + 3];
    const auto dy = zeros_unless_defined(grads[0], {x.size(0), m.size(2)}, x.options());

    static const auto op = typed_operator<signature::AttentionBackward>("dba::attention_backward");
    auto gradients = op.call(
        x, s.begin, s.end, optional(saved[1]), optional(saved[2]), optional(saved[3]), optional(saved[4]),
        s.linear_rows, core_weight_list(core_weights_from(saved, kFirstWeight)), saved[5], optional(saved[6]),
        optional(saved[7]), s.heads, s.linear, s.dropout, optional(s.rng), c, r, lse, m, dy, optional(grads[1]));
    gradients.resize(gradients.size() + 2);  // the node's other arguments are no operands
    return gradients;
  }
};

template <class Node>
auto apply(const variable_list& operands, const Settings& settings) {
  Presence presence;
  const auto present = presence.pack(operands);
  return Node::apply(at::TensorList(present), presence, settings);
}

std::tuple<Tensor, Tensor, Tensor> compress_autograd(const Tensor& x, const Tensor& begin, const Tensor& end,
                                                     const Optional& each, const Optional& each_bias,
                                                     const Optional& shared, const Optional& shared_bias,
                                                     int64_t linear, double p, const Optional& rng) {
  const auto out = apply<CompressNode>(
      {x, value_or_absent(each), value_or_absent(each_bias), value_or_absent(shared), value_or_absent(shared_bias)},
      {begin, end, value_or_absent(rng), linear, 1, false, p});
  return {out[0], out[1], out[2]};
}

Tensor restore_autograd(const Tensor& x, const Tensor& begin, const Tensor& end, const Tensor& rows,
                        const Optional& bias, const Tensor& m, const Optional& out_bias, int64_t heads, bool linear,
                        double p, const Optional& rng) {
  return apply<RestoreNode>({x, rows, value_or_absent(bias), m, value_or_absent(out_bias)},
                            {begin, end, value_or_absent(rng), 0, heads, linear, p});
}

std::tuple<Tensor, Tensor> core_autograd(const Tensor& c, const Tensor& r, const OptionalList& weights, int64_t heads,
                                         double p, const Optional& rng) {
  variable_list operands{c, r};
  append(operands, core_weights(weights));
  const auto out = apply<CoreNode>(operands, {{}, {}, value_or_absent(rng), 0, heads, false, p});
  return {out[0], out[1]};
}

std::tuple<Tensor, Tensor> attention_autograd(const Tensor& x, const Tensor& begin, const Tensor& end,
                                              const Optional& each, const Optional& each_bias, const Optional& shared,
                                              const Optional& shared_bias, int64_t linear_rows,
                                              const OptionalList& weights, const Tensor& restore_rows,
                                              const Optional& restore_bias, const Optional& out_bias, int64_t heads,
                                              bool linear, double p, const Optional& rng) {
  if (!at::GradMode::is_enabled()) {
    // Without a backward nothing needs to be kept for it.
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = typed_operator<signature::Attention>("dba::attention");
    return op.call(x, begin, end, each, each_bias, shared, shared_bias, linear_rows, weights, restore_rows,
                   restore_bias, out_bias, heads, linear, p, rng);
  }
  variable_list operands{x,
                         value_or_absent(each),
                         value_or_absent(each_bias),
                         value_or_absent(shared),
                         value_or_absent(shared_bias),
                         restore_rows,
                         value_or_absent(restore_bias),
                         value_or_absent(out_bias)};
  append(operands, core_weights(weights));
  const auto out = apply<AttentionNode>(operands, {begin, end, value_or_absent(rng), linear_rows, heads, linear, p});
  return {out[0], out[1]};
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, Autograd, m) {
  m.impl("compress", compress_autograd);
  m.impl("restore", restore_autograd);
  m.impl("core", core_autograd);
  m.impl("attention", attention_autograd);
}

}  // namespace dba::ops

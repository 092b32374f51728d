#include "dba/nn/dba_attention.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "nn/dba_checks.h"
#include "nn/direct.h"
#include "nn/full_map.h"
#include "nn/projected.h"
#include "nn/rows.h"
#include "ops/checks.h"
#include "ops/fused.h"
#include "plan/choose.h"

namespace dba {
namespace {

constexpr const char* kName = "DBAttention";

ops::CoreWeights core_weights(const DBAttentionImpl& m) {
  ops::CoreWeights w;
  w.query_weight = m.w_q->weight;
  w.query_bias = m.w_q->bias;
  w.key_weight = m.w_k->weight;
  w.key_bias = m.w_k->bias;
  w.value_weight = m.w_v->weight;
  w.value_bias = m.w_v->bias;
  w.width = m.r;
  w.out_weight = m.w_o->weight;
  if (m.options.form() == Form::released) {
    w.compress_weight = m.p_v->weight;
    w.compress_bias = m.p_v->bias;
    w.norm_weight = m.norm->weight;
    w.norm_bias = m.norm->bias;
  }
  return w;
}

/// The score rows of W_r, W_c and W_c' (paper) or of the one compression (released).
ops::ScoreRows score_rows(DBAttentionImpl& m, const at::Tensor& z) {
  const auto heads = m.options.heads();
  ops::ScoreRows rows;
  if (m.options.form() == Form::released) {
    const auto scale = 1.0 / std::sqrt(static_cast<double>(m.head_width()));
    auto [folded, bias] = ops::fold(m.p_q->forward(z), m.p_k->weight, m.p_k->bias, heads, scale);
    (z.dim() == 3 ? rows.each : rows.shared) = folded;
    (z.dim() == 3 ? rows.each_bias : rows.shared_bias) = bias;
    return rows;
  }
  // The biases of Q and K shift every score of a slot alike; the softmax over tokens does not see them.
  const auto scale = 1.0 / std::sqrt(static_cast<double>(m.options.d() / heads));
  const std::vector<at::Tensor> weights{m.w_q->weight, m.w_k->weight};
  if (z.dim() == 3) {
    rows.each = ops::fold_stack(z, weights, {}, {}, {}, heads, scale).first;
    rows.shared = m.f_c->weight;
    rows.shared_bias = m.f_c->bias;
  } else {
    std::tie(rows.shared, rows.shared_bias) = ops::fold_stack(z, weights, {}, m.f_c->weight, m.f_c->bias, heads, scale);
  }
  rows.linear = m.options.normalise() == Normalise::linear ? heads * m.options.d_p() : 0;
  return rows;
}

direct::Layer direct_layer(DBAttentionImpl& m, const at::Tensor& rows, const Sequences& sequences,
                           const at::Tensor& z) {
  const bool released = m.options.form() == Form::released;
  const auto& restore = released ? m.w_u : m.f_r;
  direct::Layer layer{rows,
                      sequences,
                      released ? m.p_q->forward(z) : z,
                      core_weights(m),
                      {},
                      {},
                      {},
                      {},
                      restore->weight,
                      restore->bias,
                      m.w_o->bias,
                      m.options.heads(),
                      m.options.normalise() == Normalise::linear};
  if (released) {
    layer.key_weight = m.p_k->weight;
    layer.key_bias = m.p_k->bias;
  } else {
    layer.mix_weight = m.f_c->weight;
    layer.mix_bias = m.f_c->bias;
  }
  return layer;
}

/// The order for this call: the one asked for, or the planner's.
Order order_of(const DBAttentionImpl& m, const at::Tensor& tokens, const Sequences& sequences, const at::Tensor& z,
               double dropout) {
  const auto& options = m.options;
  const bool autocast = at::autocast::is_autocast_enabled(tokens.device().type());
  if (options.order() == Order::projected && (dropout > 0 || autocast)) {
    return Order::two_pass;
  }
  if (options.order() != Order::automatic) {
    return options.order();
  }
  plan::Shape shape;
  shape.tokens = sequences.rows;
  shape.batch = sequences.count();
  shape.longest = sequences.padded_length >= 0 ? sequences.padded_length : sequences.max_length;
  shape.d = options.d();
  shape.heads = options.heads();
  shape.d_p = options.d_p();
  shape.e = m.head_width();
  shape.form = options.form();
  shape.normalise = options.normalise();
  shape.slots_per_sequence = z.dim() == 3;
  shape.dtype = tokens.scalar_type();
  shape.device = tokens.device().type();
  shape.autocast = autocast;
  shape.training =
      torch::GradMode::is_enabled() && (tokens.requires_grad() || z.requires_grad() || m.w_o->weight.requires_grad());
  shape.dropout = dropout;
  shape.threads = at::get_num_threads();
  const auto order = plan::choose_order(shape);
  ops::log_choice("DBAttention: the planner takes order " + to_string(order));
  return order;
}

}  // namespace

DBAttentionImpl::DBAttentionImpl(DBAttentionOptions options_) : options(std::move(options_)) {
  check_options(kName, options);
  warn_of_rounding(kName, options);
  reset();
}

int64_t DBAttentionImpl::head_width() const {
  return width_per_head(options);
}

void DBAttentionImpl::reset() {
  const auto d = options.d();
  const auto slots_of_all = options.heads() * options.d_p();
  const auto inner = options.heads() * head_width();
  const auto linear = [this](const char* name, int64_t in, int64_t out) {
    return register_module(name, make_linear(in, out, options.bias()));
  };
  if (options.form() == Form::released) {
    p_q = linear("p_q", d, inner);
    p_k = linear("p_k", d, inner);
    p_v = linear("p_v", d, d);
    w_q = linear("w_q", d, inner);
    w_k = linear("w_k", d, inner);
    w_v = linear("w_v", d, d);
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({d})));
    w_u = linear("w_u", d, slots_of_all);
    w_o = linear("w_o", d, d);
  } else {
    w_q = linear("w_q", d, d);
    w_k = linear("w_k", d, d);
    w_v = linear("w_v", d, d);
    w_o = linear("w_o", d, d);
    if (options.compress_width()) {
      r = register_parameter("r", torch::empty({options.heads(), d / options.heads(), head_width()}));
    }
    if (options.compress_length()) {
      f_c = linear("f_c", d, slots_of_all);
      f_r = linear("f_r", d, slots_of_all);
    }
  }
  if (options.compress_length()) {
    if (options.z_update() == ZUpdate::own) {
      slots = register_module("slots", Slots(SlotsOptions(options.d_p(), d).dropout(options.z_dropout())));
    } else if (options.z_update() == ZUpdate::residual_norm && options.hands_on_z()) {
      z_norm = register_module("z_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({d})));
    }
  }
  reset_parameters();
}

void DBAttentionImpl::reset_parameters() {
  for (auto* layer : {&w_q, &w_k, &w_v, &w_o, &f_c, &f_r, &p_q, &p_k, &p_v, &w_u}) {
    if (*layer) {
      (*layer)->reset_parameters();
    }
  }
  for (auto* layer : {&norm, &z_norm}) {
    if (*layer) {
      (*layer)->reset_parameters();
    }
  }
  if (r.defined()) {
    reset_width(r);
  }
  if (slots) {
    slots->reset_parameters();
  }
}

void DBAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::DBAttention(" << options << ")";
}

AttentionOutput DBAttentionImpl::attend(const at::Tensor& x, const Sequences& sequences, const at::Tensor& z,
                                        bool need_weights) {
  const auto tokens = as_rows(kName, "x", x, sequences, options.d());
  check_type(kName, "x", x, w_o->weight);
  const auto p = is_training() ? options.dropout() : 0.0;
  AttentionOutput output;
  if (!options.compress_length()) {
    const auto narrowed = [this](const at::Tensor& rows) {  // Q_h R_h
      const auto heads = rows.view({rows.size(0), options.heads(), rows.size(1) / options.heads()}).transpose(0, 1);
      return r.defined() ? torch::matmul(heads, r).transpose(0, 1).flatten(1) : rows;
    };
    const auto q = narrowed(w_q->forward(tokens));
    const auto k = narrowed(w_k->forward(tokens));
    const auto mixed = full_map_attention(q, k, w_v->forward(tokens), sequences, options.heads(), p);
    output.y = clear_rows(w_o->forward(mixed), real_rows(sequences)).view(x.sizes());
    output.z = z;
    if (need_weights) {
      output.weights.emplace();
      output.weights->p = full_map_weights(q, k, sequences, options.heads());
    }
    return output;
  }

  at::Tensor slots_in = z;
  if (options.z_update() == ZUpdate::own) {
    TORCH_CHECK(!z.defined(), "dba::DBAttention: z must be absent when z_update is own, got ", ops::describe(z));
    slots_in = slots->forward(sequences.count());
  } else {
    TORCH_CHECK(z.defined(), "dba::DBAttention: z must be given, of shape (", options.d_p(), ", ", options.d(),
                ") or (B, ", options.d_p(), ", ", options.d(),
                "), got nothing; a layer that stands alone has z_update own");
    if (z.dim() == 3) {
      ops::check_shape(kName, "z", z, {sequences.count(), options.d_p(), options.d()});
    } else {
      ops::check_shape(kName, "z", z, {options.d_p(), options.d()});
    }
  }

  const auto dropout = ops::Dropout::draw(p, x.device());
  const auto order = order_of(*this, tokens, sequences, slots_in, p);
  at::Tensor c;
  if (order == Order::direct) {
    const auto result = direct::attention(direct_layer(*this, tokens, sequences, slots_in), dropout);
    output.y = result.y;
    c = result.c;
  } else if (order == Order::projected) {
    const auto result = projected::attention(direct_layer(*this, tokens, sequences, slots_in));
    output.y = result.y;
    c = result.c;
  } else {
    const auto& restore = options.form() == Form::released ? w_u : f_r;
    const auto result =
        ops::attention(tokens, sequences, score_rows(*this, slots_in), core_weights(*this), restore->weight,
                       restore->bias, w_o->bias, options.heads(), options.normalise() == Normalise::linear, dropout);
    output.y = result.y;
    c = result.c;
  }
  output.y = output.y.view(x.sizes());
  if (need_weights) {
    output.weights = direct::attention(direct_layer(*this, tokens, sequences, slots_in), {}).weights;
  }

  if (options.hands_on_z()) {
    c = c.to(w_o->weight.scalar_type());
    switch (options.z_update()) {
      case ZUpdate::residual_norm:
        output.z = z_norm->forward(slots_in + torch::dropout(c, options.z_dropout(), is_training()));
        break;
      case ZUpdate::replace:
        output.z = c;
        break;
      case ZUpdate::fixed:
        output.z = z;
        break;
      case ZUpdate::own:
        break;
    }
  }
  return output;
}

}  // namespace dba

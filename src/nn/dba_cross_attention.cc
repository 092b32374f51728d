#include "dba/nn/dba_cross_attention.h"

#include <torch/torch.h>

#include <cmath>

#include "nn/dba_checks.h"
#include "nn/direct.h"
#include "nn/rows.h"
#include "ops/checks.h"

namespace dba {
namespace {

constexpr const char* kCompressor = "Compressor";
constexpr const char* kCross = "DBACrossAttention";

void set_rows(ops::ScoreRows& rows, const std::pair<at::Tensor, at::Tensor>& folded) {
  const bool each = folded.first.dim() == 3;
  (each ? rows.each : rows.shared) = folded.first;
  (each ? rows.each_bias : rows.shared_bias) = folded.second;
}

double inverse_root(int64_t width) {
  return 1.0 / std::sqrt(static_cast<double>(width));
}

}  // namespace

CompressorImpl::CompressorImpl(DBAttentionOptions options_) : options(std::move(options_)) {
  check_options(kCompressor, options);
  reset();
}

void CompressorImpl::reset() {
  const auto d = options.d();
  slots = register_module("slots", Slots(SlotsOptions(options.d_p(), d).dropout(options.z_dropout())));
  if (options.form() == Form::released) {
    const auto inner = options.heads() * width_per_head(options);
    p_q = register_module("p_q", make_linear(d, inner, options.bias()));
    p_k = register_module("p_k", make_linear(d, inner, options.bias()));
    p_v = register_module("p_v", make_linear(d, d, options.bias()));
  } else {
    w_q = register_module("w_q", make_linear(d, d, options.bias()));
  }
}

void CompressorImpl::reset_parameters() {
  slots->reset_parameters();
  for (auto* layer : {&w_q, &p_q, &p_k, &p_v}) {
    if (*layer) {
      (*layer)->reset_parameters();
    }
  }
}

void CompressorImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::Compressor(" << options << ")";
}

at::Tensor CompressorImpl::forward(const at::Tensor& x, const Sequences& sequences) {
  const auto tokens = as_rows(kCompressor, "x", x, sequences, options.d());
  check_type(kCompressor, "x", x, slots->z);
  const auto heads = options.heads();
  const bool released = options.form() == Form::released;
  const auto dropout = ops::Dropout::draw(is_training() ? options.dropout() : 0.0, x.device());
  const auto first = slots->forward(sequences.count());
  const auto z = released ? p_q->forward(first) : first;
  const auto& scored = released ? p_k : w_q;
  const auto& value = released ? p_v : w_q;
  if (options.order() == Order::direct) {
    return direct::compress(tokens, sequences, z, scored->weight, scored->bias, value->weight, value->bias, heads,
                            dropout);
  }
  ops::ScoreRows rows;
  set_rows(rows, ops::fold(z, scored->weight, released ? scored->bias : at::Tensor(), heads,
                           inverse_root(z.size(-1) / heads)));
  const auto summary = ops::compress(tokens, sequences, rows, dropout);
  // (W X)_h P_hᵀ + r_h b_h, heads side by side
  const auto type = summary.c.scalar_type();
  const auto by_head = [&](const at::Tensor& t, int64_t width) {
    return t.view({sequences.count(), heads, options.d_p(), width});
  };
  const auto weight = value->weight.to(type).view({heads, -1, options.d()});
  auto c = torch::matmul(by_head(summary.c, options.d()), weight.transpose(1, 2));
  if (value->bias.defined()) {
    c = c + by_head(summary.r, 1) * value->bias.to(type).view({heads, 1, -1});
  }
  return c.transpose(1, 2).flatten(2).to(value->weight.scalar_type());
}

DBACrossAttentionImpl::DBACrossAttentionImpl(DBAttentionOptions options_) : options(std::move(options_)) {
  check_options(kCross, options);
  TORCH_CHECK(options.compress_length(), "dba::DBACrossAttention: compress_length must be true, got false");
  warn_of_rounding(kCross, options);
  reset();
}

void DBACrossAttentionImpl::reset() {
  const auto d = options.d();
  const auto inner = options.heads() * width_per_head(options);
  const auto slots_of_all = options.heads() * options.d_p();
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
  } else {
    w_z = linear("w_z", d, d);
    w_q = linear("w_q", d, d);
    w_k = linear("w_k", d, d);
    w_v = linear("w_v", d, d);
    if (options.compress_width()) {
      r = register_parameter("r", torch::empty({options.heads(), d / options.heads(), width_per_head(options)}));
    }
    f_r = linear("f_r", d, slots_of_all);
  }
  w_o = linear("w_o", d, d);
  reset_parameters();
}

void DBACrossAttentionImpl::reset_parameters() {
  for (auto* layer : {&w_z, &w_q, &w_k, &w_v, &w_o, &f_r, &p_q, &p_k, &p_v, &w_u}) {
    if (*layer) {
      (*layer)->reset_parameters();
    }
  }
  if (norm) {
    norm->reset_parameters();
  }
  if (r.defined()) {
    reset_width(r);
  }
}

void DBACrossAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::DBACrossAttention(" << options << ")";
}

CrossAttentionOutput DBACrossAttentionImpl::forward(const at::Tensor& x_1, const Sequences& sequences_1,
                                                    const at::Tensor& c_2, bool need_weights) {
  const auto tokens = as_rows(kCross, "x_1", x_1, sequences_1, options.d());
  check_type(kCross, "x_1", x_1, w_o->weight);
  ops::check_shape(kCross, "c_2", c_2, {sequences_1.count(), options.d_p(), options.d()});
  const auto heads = options.heads();
  const bool released = options.form() == Form::released;
  const bool linear = options.normalise() == Normalise::linear;
  const auto dropout = ops::Dropout::draw(is_training() ? options.dropout() : 0.0, x_1.device());
  const auto z = (released ? p_q : w_z)->forward(c_2);
  const auto& scored = released ? p_k : w_q;
  const auto& restore = released ? w_u : f_r;

  ops::CoreWeights w;
  w.query_weight = w_q->weight;
  w.query_bias = w_q->bias;
  w.key_weight = w_k->weight;
  w.key_bias = w_k->bias;
  w.value_weight = w_v->weight;
  w.value_bias = w_v->bias;
  w.width = r;
  w.out_weight = w_o->weight;
  w.other = c_2;
  if (released) {
    w.compress_weight = p_v->weight;
    w.compress_bias = p_v->bias;
    w.norm_weight = norm->weight;
    w.norm_bias = norm->bias;
  }
  const direct::Layer as_written{tokens,
                                 sequences_1,
                                 z,
                                 w,
                                 released ? p_k->weight : at::Tensor(),
                                 released ? p_k->bias : at::Tensor(),
                                 {},
                                 {},
                                 restore->weight,
                                 restore->bias,
                                 w_o->bias,
                                 heads,
                                 linear};

  CrossAttentionOutput output;
  if (options.order() == Order::direct) {
    const auto result = direct::attention(as_written, dropout);
    output.y = result.y;
    output.c = result.c;
  } else {
    ops::ScoreRows rows;
    set_rows(rows, ops::fold(z, scored->weight, released ? scored->bias : at::Tensor(), heads,
                             inverse_root(z.size(-1) / heads)));
    const auto result =
        ops::attention(tokens, sequences_1, rows, w, restore->weight, restore->bias, w_o->bias, heads, linear, dropout);
    output.y = result.y;
    output.c = result.c.to(w_o->weight.scalar_type());
  }
  output.y = output.y.view(x_1.sizes());
  if (need_weights) {
    output.weights = direct::attention(as_written, {}).weights;
  }
  return output;
}

}  // namespace dba

#include "dba/nn/encoder_layer.h"

#include <ATen/ops/linear.h>

#include "dba/activate.h"
#include "dba/nn/initialise.h"
#include "dba/nn/make_attention.h"
#include "dba/residual_norm.h"
#include "nn/named_choice.h"
#include "nn/rows.h"

namespace dba {
namespace {

constexpr NamedChoice<Activation> kActivations[] = {{"gelu", Activation::gelu}, {"relu", Activation::relu}};

TokenNorm make_norm(const EncoderLayerOptions& options) {
  return TokenNorm(TokenNormOptions(options.d()).kind(options.norm()).eps(options.norm_eps()));
}

ops::LayerNormWeights weights_of(const TokenNorm& norm) {
  return {norm->weight, norm->bias, norm->options.eps()};
}

}  // namespace

Activation parse_activation(const std::string& name) {
  return parse_choice("parse_activation", name, kActivations);
}

std::string to_string(Activation activation) {
  return name_of(activation, kActivations);
}

ResidualBlockImpl::ResidualBlockImpl(EncoderLayerOptions options_) : options(std::move(options_)) {
  ResidualBlockImpl::reset();
}

void ResidualBlockImpl::reset() {
  check_positive("EncoderLayer", "d", options.d());
  check_positive("EncoderLayer", "d_ffn", options.d_ffn());
  check_rate("EncoderLayer", "dropout", options.dropout());
  check_rate("EncoderLayer", "activation_dropout", options.activation_dropout());
  attention_norm = register_module("attention_norm", make_norm(options));
  linear_1 = register_module("linear_1", torch::nn::Linear(options.d(), options.d_ffn()));
  linear_2 = register_module("linear_2", torch::nn::Linear(options.d_ffn(), options.d()));
  ffn_norm = register_module("ffn_norm", make_norm(options));
}

void ResidualBlockImpl::reset_parameters() {
  initialise(*this, Initialise::torch_default);
}

void ResidualBlockImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::ResidualBlock(d=" << options.d() << ", d_ffn=" << options.d_ffn() << ", norm_first=" << std::boolalpha
         << options.norm_first() << ", activation=" << to_string(options.activation())
         << ", norm=" << to_string(options.norm()) << ", dropout=" << options.dropout()
         << ", activation_dropout=" << options.activation_dropout() << ")";
}

at::Tensor ResidualBlockImpl::attention_input(const at::Tensor& x, const at::Tensor& row_mask) {
  if (!options.norm_first()) {
    return x;
  }
  return options.norm() == NormKind::layer ? ops::layer_norm(x, weights_of(attention_norm))
                                           : attention_norm(x, row_mask);
}

at::Tensor ResidualBlockImpl::forward(const at::Tensor& x, const at::Tensor& attention_output,
                                      const at::Tensor& row_mask) {
  const auto branch = [&](const at::Tensor& value, const at::Tensor& bias) {
    return ops::Branch{value, bias, ops::Dropout::draw(is_training() ? options.dropout() : 0.0, x.device())};
  };
  // A norm over the batch needs the whole sum first.
  const bool fused = options.norm() == NormKind::layer;
  if (options.norm_first()) {
    ops::SumAndNorm after_attention;
    if (fused) {
      after_attention = ops::residual_sum_and_norm(x, branch(attention_output, {}), weights_of(ffn_norm));
    } else {
      after_attention.sum = ops::residual_sum(x, branch(attention_output, {}));
      after_attention.y = ffn_norm(after_attention.sum, row_mask);
    }
    return ops::residual_sum(after_attention.sum, branch(feed_forward(after_attention.y), linear_2->bias));
  }
  const auto add_and_norm = [&](TokenNorm& norm, const at::Tensor& residual, const ops::Branch& added) {
    return fused ? ops::residual_norm(residual, added, weights_of(norm))
                 : norm(ops::residual_sum(residual, added), row_mask);
  };
  const auto normed = add_and_norm(attention_norm, x, branch(attention_output, {}));
  return add_and_norm(ffn_norm, normed, branch(feed_forward(normed), linear_2->bias));
}

at::Tensor ResidualBlockImpl::feed_forward(const at::Tensor& x) {
  const auto kind = options.activation() == Activation::gelu ? ops::ActivationKind::gelu : ops::ActivationKind::relu;
  const auto dropout = ops::Dropout::draw(is_training() ? options.activation_dropout() : 0.0, x.device());
  const auto active = ops::activate(at::linear(x, linear_1->weight), linear_1->bias, kind, dropout);
  return at::linear(active, linear_2->weight);
}

EncoderLayerImpl::EncoderLayerImpl(EncoderLayerOptions options_) : options(std::move(options_)) {
  EncoderLayerImpl::reset();
}

void EncoderLayerImpl::reset() {
  auto attention_options = options.attention_options();
  attention_options.d(options.d()).heads(options.heads());
  attention = register_module("attention", make_attention(options.attention(), attention_options));
  block = register_module("block", ResidualBlock(options));
}

void EncoderLayerImpl::reset_parameters() {
  initialise(*this, Initialise::torch_default);
}

void EncoderLayerImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::EncoderLayer(d=" << options.d() << ", heads=" << options.heads()
         << ", attention=" << options.attention() << ")";
}

Attention& EncoderLayerImpl::attention_layer() const {
  return dynamic_cast<Attention&>(*attention);
}

EncoderLayerOutput EncoderLayerImpl::forward(const at::Tensor& x, const Sequences& sequences, const at::Tensor& z,
                                             const at::Tensor& row_mask) {
  const auto rows = as_rows("EncoderLayer::forward", "x", x, sequences, options.d());
  const bool mask_missing = options.norm() == NormKind::batch && !row_mask.defined();
  const auto mask = mask_missing ? real_rows(sequences) : row_mask;
  const auto output = attention_layer().attend(block->attention_input(rows, mask), sequences, z,
                                               /*need_weights=*/false);
  return {block(rows, output.y, mask).view_as(x), output.z};
}

}  // namespace dba

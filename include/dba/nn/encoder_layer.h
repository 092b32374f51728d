#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>

#include "dba/nn/attention.h"
#include "dba/nn/dba_attention.h"
#include "dba/nn/norm.h"

namespace dba {

/// Between the two linear layers of a feed-forward network.
enum class Activation { gelu, relu };

Activation parse_activation(const std::string& name);
std::string to_string(Activation activation);

struct EncoderLayerOptions {
  EncoderLayerOptions(int64_t d, int64_t heads, int64_t d_ffn)
      : d_(d), heads_(heads), d_ffn_(d_ffn), attention_options_(d, heads) {}
  TORCH_ARG(int64_t, d);
  TORCH_ARG(int64_t, heads);
  /// Width between the two linear layers of the feed-forward network.
  TORCH_ARG(int64_t, d_ffn);
  /// A method that `make_attention` knows.
  TORCH_ARG(std::string, attention) = "dba";
  /// Its d and heads are replaced by those of the layer.
  TORCH_ARG(DBAttentionOptions, attention_options);
  /// After the attention and after the feed-forward network.
  TORCH_ARG(double, dropout) = 0.0;
  /// After the activation.
  TORCH_ARG(double, activation_dropout) = 0.0;
  /// Pre-norm, x + f(norm(x)), instead of post-norm, norm(x + f(x)).
  TORCH_ARG(bool, norm_first) = false;
  TORCH_ARG(Activation, activation) = Activation::gelu;
  TORCH_ARG(NormKind, norm) = NormKind::layer;
  TORCH_ARG(double, norm_eps) = 1e-5;
};

/// All of a layer but its attention: residuals, norms and the feed-forward network.
/// Takes the options of EncoderLayer. Tokens are (N, d) rows; row_mask as in TokenNorm.
class ResidualBlockImpl : public torch::nn::Cloneable<ResidualBlockImpl> {
 public:
  explicit ResidualBlockImpl(EncoderLayerOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// What the attention reads of the tokens x.
  at::Tensor attention_input(const at::Tensor& x, const at::Tensor& row_mask);
  /// The next tokens, from the tokens x and what the attention said of them.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& attention_output, const at::Tensor& row_mask);

  EncoderLayerOptions options;
  TokenNorm attention_norm{nullptr};
  torch::nn::Linear linear_1{nullptr}, linear_2{nullptr};  ///< d → d_ffn → d
  TokenNorm ffn_norm{nullptr};

 private:
  /// Without the bias of linear_2, which joins where the residual is added.
  at::Tensor feed_forward(const at::Tensor& x);
};
TORCH_MODULE(ResidualBlock);

struct EncoderLayerOutput {
  at::Tensor x;  ///< like the input
  at::Tensor z;  ///< the next layer's Z, where there is one to hand on
};

/// One layer of an encoder: attention and feed-forward network, each with residual and norm. Rows of nobody must be
/// finite (`Encoder` clears them); they come out finite, and no real row depends on them.
class EncoderLayerImpl : public torch::nn::Cloneable<EncoderLayerImpl> {
 public:
  explicit EncoderLayerImpl(EncoderLayerOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// x (N, d) or (B, n, d); z as the attention takes it. row_mask is `sequences.row_mask()`, for callers that have it.
  EncoderLayerOutput forward(const at::Tensor& x, const Sequences& sequences, const at::Tensor& z = {},
                             const at::Tensor& row_mask = {});
  /// The interface of `attention`.
  Attention& attention_layer() const;

  EncoderLayerOptions options;
  std::shared_ptr<torch::nn::Module> attention;
  ResidualBlock block{nullptr};
};
TORCH_MODULE(EncoderLayer);

}  // namespace dba

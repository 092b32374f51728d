#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include "dba/nn/dba_cross_attention.h"
#include "dba/nn/encoder_layer.h"

namespace dba {

struct CoEncoderOptions {
  CoEncoderOptions(EncoderLayerOptions layer, int64_t depth) : layer_(std::move(layer)), depth_(depth) {}
  /// Of both streams. The attention is always DBACrossAttention: `attention` has no meaning here.
  TORCH_ARG(EncoderLayerOptions, layer);
  TORCH_ARG(int64_t, depth);
};

/// Two streams of tokens and what each has been compressed to.
struct StreamPair {
  at::Tensor x_1;  ///< (N_1, d) or (B, n_1, d)
  at::Tensor x_2;  ///< (N_2, d) or (B, n_2, d)
  at::Tensor c_1;  ///< (B, d_p, d)
  at::Tensor c_2;  ///< (B, d_p, d)
};

/// Two interactions at the same time: stream 1 asks stream 2 and stream 2 asks stream 1, each given by its C of the
/// layer before; residuals, norms and feed-forward network follow in each stream. Takes the options of EncoderLayer.
/// Rows of nobody must be finite (`CoEncoder` clears them).
class CoEncoderLayerImpl : public torch::nn::Cloneable<CoEncoderLayerImpl> {
 public:
  explicit CoEncoderLayerImpl(EncoderLayerOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  StreamPair forward(const StreamPair& streams, const Sequences& sequences_1, const Sequences& sequences_2);

  EncoderLayerOptions options;
  DBACrossAttention attention_1{nullptr};  ///< stream 1 asks stream 2
  DBACrossAttention attention_2{nullptr};  ///< stream 2 asks stream 1
  ResidualBlock block_1{nullptr}, block_2{nullptr};
};
TORCH_MODULE(CoEncoderLayer);

/// A stack of co-attention layers over two streams of different lengths; either may be empty. A compressor per stream
/// makes the C that the first layer is handed. With pre-norm layers a last norm follows in each stream. Rows of nobody
/// may hold anything; they come out as zeros.
class CoEncoderImpl : public torch::nn::Cloneable<CoEncoderImpl> {
 public:
  explicit CoEncoderImpl(CoEncoderOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// x_1 (N_1, d) or (B, n_1, d), x_2 likewise, B sequences in each. The tokens that come out have the shapes of those
  /// that went in; c_1 and c_2 are those of the last layer.
  StreamPair forward(const at::Tensor& x_1, const Sequences& sequences_1, const at::Tensor& x_2,
                     const Sequences& sequences_2);
  CoEncoderLayer layer(int64_t index) const;

  CoEncoderOptions options;
  Compressor compressor_1{nullptr}, compressor_2{nullptr};
  torch::nn::ModuleList layers{nullptr};       ///< of CoEncoderLayer
  TokenNorm norm_1{nullptr}, norm_2{nullptr};  ///< pre-norm only
};
TORCH_MODULE(CoEncoder);

}  // namespace dba

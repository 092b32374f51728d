#pragma once

#include <torch/nn/pimpl.h>

#include <optional>

#include "dba/nn/embedding.h"
#include "dba/nn/encoder.h"
#include "dba/nn/head.h"
#include "dba/nn/initialise.h"
#include "dba/nn/pooling.h"
#include "dba/nn/position.h"

namespace dba {

struct ClassifierOptions {
  ClassifierOptions(EncoderOptions encoder, int64_t classes) : encoder_(std::move(encoder)), classes_(classes) {}
  TORCH_ARG(EncoderOptions, encoder);
  TORCH_ARG(int64_t, classes);

  /// The input: symbols (`vocabulary` of them) or `features` real numbers per time step. One of the two is positive.
  TORCH_ARG(int64_t, vocabulary) = 0;
  TORCH_ARG(int64_t, features) = 0;
  /// Whether embedded features are multiplied by √d.
  TORCH_ARG(bool, scale_features) = false;
  TORCH_ARG(Position, position) = Position::learned;
  /// The longest sequence, for learned positions and for pooling by `flatten`.
  TORCH_ARG(int64_t, max_length) = 0;
  /// LayerNorm after the sum of embedding and position (Long-Range Arena: yes; time series: no).
  TORCH_ARG(bool, embedding_norm) = true;
  /// After that.
  TORCH_ARG(double, embedding_dropout) = 0.0;

  /// GELU on the encoder's output (time series: yes), then `output_dropout`.
  TORCH_ARG(bool, output_activation) = false;
  TORCH_ARG(double, output_dropout) = 0.0;
  TORCH_ARG(Pool, pooling) = Pool::mean;

  TORCH_ARG(HeadKind, head) = HeadKind::linear;
  /// Of an `mlp` head.
  TORCH_ARG(int64_t, head_hidden) = 0;
  TORCH_ARG(double, head_dropout) = 0.0;

  TORCH_ARG(Initialise, initialise) = Initialise::luna;
};

/// From raw sequences to one vector each: embedding, positions, encoder, pooling. Takes the options of Classifier.
class BackboneImpl : public torch::nn::Cloneable<BackboneImpl> {
 public:
  explicit BackboneImpl(ClassifierOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// Tokens (N) or (B, n), or features (N, f) or (B, n, f). Without `sequences`, a plain batch (B, n) or (B, n, f).
  /// token_positions as for PositionEmbedding. Returns (B, width()).
  at::Tensor forward(const at::Tensor& input, const std::optional<Sequences>& sequences = std::nullopt,
                     const at::Tensor& token_positions = {});
  int64_t width() const;

  ClassifierOptions options;
  TokenEmbedding tokens{nullptr};        ///< with a vocabulary
  FeatureEmbedding features{nullptr};    ///< with features
  PositionEmbedding positions{nullptr};  ///< unless there are none
  TokenNorm embedding_norm{nullptr};     ///< if wanted
  Encoder encoder{nullptr};
  Pooling pooling{nullptr};
};
TORCH_MODULE(Backbone);

/// Logits for whole sequences.
class ClassifierImpl : public torch::nn::Cloneable<ClassifierImpl> {
 public:
  explicit ClassifierImpl(ClassifierOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// Arguments as for Backbone. Returns (B, classes).
  at::Tensor forward(const at::Tensor& input, const std::optional<Sequences>& sequences = std::nullopt,
                     const at::Tensor& token_positions = {});

  ClassifierOptions options;
  Backbone backbone{nullptr};
  Head head{nullptr};
};
TORCH_MODULE(Classifier);

}  // namespace dba

#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "dba/sequences.h"

namespace dba {

struct TokenEmbeddingOptions {
  TokenEmbeddingOptions(int64_t vocabulary, int64_t d) : vocabulary_(vocabulary), d_(d) {}
  /// Number of symbols. Padding needs none of its own: `Sequences` says which rows are real.
  TORCH_ARG(int64_t, vocabulary);
  TORCH_ARG(int64_t, d);
};

/// One learned vector per symbol, N(0, 1/d) at first.
class TokenEmbeddingImpl : public torch::nn::Cloneable<TokenEmbeddingImpl> {
 public:
  explicit TokenEmbeddingImpl(TokenEmbeddingOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// tokens (N) or (B, n), integers in [0, vocabulary) in the real rows and anything elsewhere. Returns (N, d), finite
  /// in the rows of nobody.
  at::Tensor forward(const at::Tensor& tokens, const Sequences& sequences);

  TokenEmbeddingOptions options;
  at::Tensor weight;  ///< (vocabulary, d)
};
TORCH_MODULE(TokenEmbedding);

struct FeatureEmbeddingOptions {
  FeatureEmbeddingOptions(int64_t features, int64_t d) : features_(features), d_(d) {}
  /// Real numbers per time step.
  TORCH_ARG(int64_t, features);
  TORCH_ARG(int64_t, d);
  /// Whether the result is multiplied by √d, as in the time-series code.
  TORCH_ARG(bool, scale) = false;
};

/// A linear map of real-valued features.
class FeatureEmbeddingImpl : public torch::nn::Cloneable<FeatureEmbeddingImpl> {
 public:
  explicit FeatureEmbeddingImpl(FeatureEmbeddingOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// x (N, features) or (B, n, features), anything in the rows of nobody. Returns (N, d), finite in the rows of nobody.
  at::Tensor forward(const at::Tensor& x, const Sequences& sequences);

  FeatureEmbeddingOptions options;
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(FeatureEmbedding);

}  // namespace dba

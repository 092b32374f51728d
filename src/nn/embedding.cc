#include "dba/nn/embedding.h"

#include <ATen/ops/empty.h>
#include <torch/nn/init.h>

#include <cmath>

#include "nn/rows.h"
#include "nn/symbol_embedding.h"
#include "ops/checks.h"

namespace dba {

TokenEmbeddingImpl::TokenEmbeddingImpl(TokenEmbeddingOptions options_) : options(std::move(options_)) {
  TokenEmbeddingImpl::reset();
}

void TokenEmbeddingImpl::reset() {
  check_positive("TokenEmbedding", "vocabulary", options.vocabulary());
  check_positive("TokenEmbedding", "d", options.d());
  weight = register_parameter("weight", at::empty({options.vocabulary(), options.d()}));
  reset_parameters();
}

void TokenEmbeddingImpl::reset_parameters() {
  torch::nn::init::normal_(weight, 0.0, 1.0 / std::sqrt(static_cast<double>(options.d())));
}

void TokenEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::TokenEmbedding(vocabulary=" << options.vocabulary() << ", d=" << options.d() << ")";
}

at::Tensor TokenEmbeddingImpl::forward(const at::Tensor& tokens, const Sequences& sequences) {
  TORCH_CHECK(tokens.defined() && at::isIntegralType(tokens.scalar_type(), /*includeBool=*/false),
              "dba::TokenEmbedding::forward: tokens must hold integers, got ", ops::describe(tokens),
              "; real-valued inputs belong to FeatureEmbedding");
  const auto rows = as_rows("TokenEmbedding::forward", "tokens", tokens.unsqueeze(-1), sequences, 1).squeeze(-1);
  const auto real = clear_rows(rows.to(at::kLong), real_rows(sequences));
  if (ops::values_can_be_checked(real) && real.numel() > 0) {
    const auto smallest = real.min().item<int64_t>();
    const auto largest = real.max().item<int64_t>();
    TORCH_CHECK(smallest >= 0 && largest < options.vocabulary(),
                "dba::TokenEmbedding::forward: tokens must lie in [0, ", options.vocabulary(), "), got ",
                smallest < 0 ? smallest : largest, "; enlarge `vocabulary` or map unknown symbols to one of it");
  }
  return embed_symbols(weight, real);
}

FeatureEmbeddingImpl::FeatureEmbeddingImpl(FeatureEmbeddingOptions options_) : options(std::move(options_)) {
  FeatureEmbeddingImpl::reset();
}

void FeatureEmbeddingImpl::reset() {
  check_positive("FeatureEmbedding", "features", options.features());
  check_positive("FeatureEmbedding", "d", options.d());
  linear = register_module("linear", torch::nn::Linear(options.features(), options.d()));
}

void FeatureEmbeddingImpl::reset_parameters() {
  linear->reset_parameters();
}

void FeatureEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::FeatureEmbedding(features=" << options.features() << ", d=" << options.d()
         << ", scale=" << std::boolalpha << options.scale() << ")";
}

at::Tensor FeatureEmbeddingImpl::forward(const at::Tensor& x, const Sequences& sequences) {
  const auto rows = as_rows("FeatureEmbedding::forward", "x", x, sequences, options.features());
  const auto embedded = linear(clear_rows(rows, real_rows(sequences)));
  return options.scale() ? embedded * std::sqrt(static_cast<double>(options.d())) : embedded;
}

}  // namespace dba

#include "dba/nn/classifier.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>

#include "dba/residual_norm.h"
#include "nn/rows.h"

namespace dba {

BackboneImpl::BackboneImpl(ClassifierOptions options_) : options(std::move(options_)) {
  BackboneImpl::reset();
}

void BackboneImpl::reset() {
  TORCH_CHECK((options.vocabulary() > 0) != (options.features() > 0),
              "dba::Classifier: either vocabulary or features must be positive, and not both, got vocabulary ",
              options.vocabulary(), " and features ", options.features());
  check_rate("Classifier", "embedding_dropout", options.embedding_dropout());
  check_rate("Classifier", "output_dropout", options.output_dropout());
  const auto d = options.encoder().layer().d();
  if (options.vocabulary() > 0) {
    tokens = register_module("tokens", TokenEmbedding(TokenEmbeddingOptions(options.vocabulary(), d)));
  } else {
    const auto feature_options = FeatureEmbeddingOptions(options.features(), d).scale(options.scale_features());
    features = register_module("features", FeatureEmbedding(feature_options));
  }
  if (options.position() != Position::none) {
    const auto position_options = PositionEmbeddingOptions(d).kind(options.position()).max_length(options.max_length());
    positions = register_module("positions", PositionEmbedding(position_options));
  }
  if (options.embedding_norm()) {
    const auto norm_options = TokenNormOptions(d).eps(options.encoder().layer().norm_eps());
    embedding_norm = register_module("embedding_norm", TokenNorm(norm_options));
  }
  encoder = register_module("encoder", Encoder(options.encoder()));
  const auto pooling_options = PoolingOptions(d).kind(options.pooling()).max_length(options.max_length());
  pooling = register_module("pooling", Pooling(pooling_options));
}

void BackboneImpl::reset_parameters() {
  initialise(*this, options.initialise());
}

void BackboneImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::Backbone(output_activation=" << std::boolalpha << options.output_activation()
         << ", embedding_dropout=" << options.embedding_dropout() << ", output_dropout=" << options.output_dropout()
         << ")";
}

at::Tensor BackboneImpl::forward(const at::Tensor& input, const std::optional<Sequences>& given,
                                 const at::Tensor& token_positions) {
  const auto sequences = given ? *given : plain_batch("Backbone::forward", "input", input, tokens ? 2 : 3);
  auto x = tokens ? tokens(input, sequences) : features(input, sequences);
  if (positions) {
    x = positions(x, sequences, token_positions);
  }
  if (embedding_norm) {
    // The fused operator: ATen's takes a thread block for every row, however narrow.
    x = ops::layer_norm(x, {embedding_norm->weight, embedding_norm->bias, embedding_norm->options.eps()});
  }
  x = encoder(at::dropout(x, options.embedding_dropout(), is_training()), sequences);
  if (options.output_activation()) {
    x = at::gelu(x);
  }
  return pooling(at::dropout(x, options.output_dropout(), is_training()), sequences);
}

int64_t BackboneImpl::width() const {
  return pooling->width();
}

ClassifierImpl::ClassifierImpl(ClassifierOptions options_) : options(std::move(options_)) {
  ClassifierImpl::reset();
}

void ClassifierImpl::reset() {
  backbone = register_module("backbone", Backbone(options));
  head = register_module("head", Head(HeadOptions(backbone->width(), options.classes())
                                          .kind(options.head())
                                          .hidden(options.head_hidden())
                                          .dropout(options.head_dropout())));
  reset_parameters();
}

void ClassifierImpl::reset_parameters() {
  initialise(*this, options.initialise());
}

void ClassifierImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::Classifier(classes=" << options.classes() << ")";
}

at::Tensor ClassifierImpl::forward(const at::Tensor& input, const std::optional<Sequences>& sequences,
                                   const at::Tensor& token_positions) {
  return head(backbone(input, sequences, token_positions));
}

}  // namespace dba

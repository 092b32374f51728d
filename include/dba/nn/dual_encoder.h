#pragma once

#include <torch/nn/pimpl.h>

#include <string>

#include "dba/nn/classifier.h"

namespace dba {

/// What the head is told of the vectors a and b of two documents.
///   concatenate  [b, a], as Luna does
///   nli          [a, b, a∘b, a − b], as the Long-Range Arena offers
enum class PairFeatures { concatenate, nli };

PairFeatures parse_pair_features(const std::string& name);
std::string to_string(PairFeatures features);

struct DualEncoderOptions {
  explicit DualEncoderOptions(ClassifierOptions classifier) : classifier_(std::move(classifier)) {}
  TORCH_ARG(ClassifierOptions, classifier);
  TORCH_ARG(PairFeatures, pair_features) = PairFeatures::concatenate;
};

/// Logits for pairs of documents. Both pass the same backbone, each by itself.
class DualEncoderImpl : public torch::nn::Cloneable<DualEncoderImpl> {
 public:
  explicit DualEncoderImpl(DualEncoderOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// Arguments as for Backbone, B sequences each; their lengths need not agree. Returns (B, classes).
  at::Tensor forward(const at::Tensor& input_1, const std::optional<Sequences>& sequences_1, const at::Tensor& input_2,
                     const std::optional<Sequences>& sequences_2, const at::Tensor& token_positions_1 = {},
                     const at::Tensor& token_positions_2 = {});

  DualEncoderOptions options;
  Backbone backbone{nullptr};
  Head head{nullptr};
};
TORCH_MODULE(DualEncoder);

}  // namespace dba

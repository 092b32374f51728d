#include "dba/nn/dual_encoder.h"

#include <ATen/ops/cat.h>

#include "nn/named_choice.h"

namespace dba {
namespace {

constexpr NamedChoice<PairFeatures> kPairFeatures[] = {{"concatenate", PairFeatures::concatenate},
                                                       {"nli", PairFeatures::nli}};

}  // namespace

PairFeatures parse_pair_features(const std::string& name) {
  return parse_choice("parse_pair_features", name, kPairFeatures);
}

std::string to_string(PairFeatures features) {
  return name_of(features, kPairFeatures);
}

DualEncoderImpl::DualEncoderImpl(DualEncoderOptions options_) : options(std::move(options_)) {
  DualEncoderImpl::reset();
}

void DualEncoderImpl::reset() {
  const auto& single = options.classifier();
  backbone = register_module("backbone", Backbone(single));
  const int64_t vectors = options.pair_features() == PairFeatures::nli ? 4 : 2;
  head = register_module("head", Head(HeadOptions(vectors * backbone->width(), single.classes())
                                          .kind(single.head())
                                          .hidden(single.head_hidden())
                                          .dropout(single.head_dropout())));
  reset_parameters();
}

void DualEncoderImpl::reset_parameters() {
  initialise(*this, options.classifier().initialise());
}

void DualEncoderImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::DualEncoder(classes=" << options.classifier().classes()
         << ", pair_features=" << to_string(options.pair_features()) << ")";
}

at::Tensor DualEncoderImpl::forward(const at::Tensor& input_1, const std::optional<Sequences>& sequences_1,
                                    const at::Tensor& input_2, const std::optional<Sequences>& sequences_2,
                                    const at::Tensor& token_positions_1, const at::Tensor& token_positions_2) {
  const auto a = backbone(input_1, sequences_1, token_positions_1);
  const auto b = backbone(input_2, sequences_2, token_positions_2);
  TORCH_CHECK(a.size(0) == b.size(0),
              "dba::DualEncoder::forward: input_2 must have as many documents as input_1, expected ", a.size(0),
              ", got ", b.size(0));
  if (options.pair_features() == PairFeatures::nli) {
    return head(at::cat({a, b, a * b, a - b}, 1));
  }
  return head(at::cat({b, a}, 1));
}

}  // namespace dba

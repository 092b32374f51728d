#include "dba/nn/co_encoder.h"

#include "dba/nn/initialise.h"
#include "nn/rows.h"

namespace dba {
namespace {

DBAttentionOptions attention_options(const EncoderLayerOptions& layer) {
  auto result = layer.attention_options();
  return result.d(layer.d()).heads(layer.heads());
}

/// row_mask where the layer's norm needs it.
at::Tensor norm_mask(const EncoderLayerOptions& layer, const Sequences& sequences) {
  return layer.norm() == NormKind::batch ? real_rows(sequences) : at::Tensor();
}

}  // namespace

CoEncoderLayerImpl::CoEncoderLayerImpl(EncoderLayerOptions options_) : options(std::move(options_)) {
  CoEncoderLayerImpl::reset();
}

void CoEncoderLayerImpl::reset() {
  attention_1 = register_module("attention_1", DBACrossAttention(attention_options(options)));
  block_1 = register_module("block_1", ResidualBlock(options));
  attention_2 = register_module("attention_2", DBACrossAttention(attention_options(options)));
  block_2 = register_module("block_2", ResidualBlock(options));
}

void CoEncoderLayerImpl::reset_parameters() {
  initialise(*this, Initialise::torch_default);
}

void CoEncoderLayerImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::CoEncoderLayer(d=" << options.d() << ", heads=" << options.heads() << ")";
}

StreamPair CoEncoderLayerImpl::forward(const StreamPair& streams, const Sequences& sequences_1,
                                       const Sequences& sequences_2) {
  const auto rows_1 = as_rows("CoEncoderLayer::forward", "x_1", streams.x_1, sequences_1, options.d());
  const auto rows_2 = as_rows("CoEncoderLayer::forward", "x_2", streams.x_2, sequences_2, options.d());
  const auto mask_1 = norm_mask(options, sequences_1);
  const auto mask_2 = norm_mask(options, sequences_2);
  const auto answer_1 = attention_1(block_1->attention_input(rows_1, mask_1), sequences_1, streams.c_2);
  const auto answer_2 = attention_2(block_2->attention_input(rows_2, mask_2), sequences_2, streams.c_1);
  return {block_1(rows_1, answer_1.y, mask_1).view_as(streams.x_1),
          block_2(rows_2, answer_2.y, mask_2).view_as(streams.x_2), answer_1.c, answer_2.c};
}

CoEncoderImpl::CoEncoderImpl(CoEncoderOptions options_) : options(std::move(options_)) {
  CoEncoderImpl::reset();
}

void CoEncoderImpl::reset() {
  check_positive("CoEncoder", "depth", options.depth());
  const auto& layer_options = options.layer();
  compressor_1 = register_module("compressor_1", Compressor(attention_options(layer_options)));
  compressor_2 = register_module("compressor_2", Compressor(attention_options(layer_options)));
  torch::nn::ModuleList stack;
  for (int64_t index = 0; index < options.depth(); ++index) {
    stack->push_back(CoEncoderLayer(layer_options));
  }
  layers = register_module("layers", stack);
  norm_1 = nullptr;
  norm_2 = nullptr;
  if (layer_options.norm_first()) {
    const auto norm_options =
        TokenNormOptions(layer_options.d()).kind(layer_options.norm()).eps(layer_options.norm_eps());
    norm_1 = register_module("norm_1", TokenNorm(norm_options));
    norm_2 = register_module("norm_2", TokenNorm(norm_options));
  }
}

void CoEncoderImpl::reset_parameters() {
  initialise(*this, Initialise::torch_default);
}

void CoEncoderImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::CoEncoder(depth=" << options.depth() << ")";
}

CoEncoderLayer CoEncoderImpl::layer(int64_t index) const {
  return CoEncoderLayer(layers->ptr<CoEncoderLayerImpl>(index));
}

StreamPair CoEncoderImpl::forward(const at::Tensor& x_1, const Sequences& sequences_1, const at::Tensor& x_2,
                                  const Sequences& sequences_2) {
  TORCH_CHECK(sequences_1.count() == sequences_2.count(),
              "dba::CoEncoder::forward: both streams must have the same number of sequences, got ", sequences_1.count(),
              " and ", sequences_2.count(), "; a stream may have empty ones");
  const auto d = options.layer().d();
  const auto mask_1 = real_rows(sequences_1);
  const auto mask_2 = real_rows(sequences_2);
  StreamPair streams;
  streams.x_1 = clear_rows(as_rows("CoEncoder::forward", "x_1", x_1, sequences_1, d), mask_1);
  streams.x_2 = clear_rows(as_rows("CoEncoder::forward", "x_2", x_2, sequences_2, d), mask_2);
  streams.c_1 = compressor_1(streams.x_1, sequences_1);
  streams.c_2 = compressor_2(streams.x_2, sequences_2);
  for (int64_t index = 0; index < options.depth(); ++index) {
    streams = layer(index)->forward(streams, sequences_1, sequences_2);
  }
  if (norm_1) {
    streams.x_1 = norm_1(streams.x_1, mask_1);
    streams.x_2 = norm_2(streams.x_2, mask_2);
  }
  streams.x_1 = clear_rows(streams.x_1, mask_1).view_as(x_1);
  streams.x_2 = clear_rows(streams.x_2, mask_2).view_as(x_2);
  return streams;
}

}  // namespace dba

#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <optional>

#include "dba/nn/encoder_layer.h"
#include "dba/nn/slots.h"

namespace dba {

struct EncoderOptions {
  EncoderOptions(EncoderLayerOptions layer, int64_t depth) : layer_(std::move(layer)), depth_(depth) {}
  /// All layers are alike. `hands_on_z` is set by the encoder; the first Z drops out at the layer's `z_dropout`.
  TORCH_ARG(EncoderLayerOptions, layer);
  TORCH_ARG(int64_t, depth);
  /// One layer's weights, applied `depth` times.
  TORCH_ARG(bool, tied) = false;
  /// Whether the first Z passes a LayerNorm (Long-Range Arena: yes; time series: no).
  TORCH_ARG(bool, slots_layer_norm) = false;
};

/// A stack of encoder layers. Attentions that carry slots get the first Z from `slots`, and each layer's Z goes to the
/// next. With pre-norm layers a last norm follows. Rows of nobody may hold anything; they come out as zeros.
class EncoderImpl : public torch::nn::Cloneable<EncoderImpl> {
 public:
  explicit EncoderImpl(EncoderOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// x (N, d) or (B, n, d); the result has x's shape. Without `sequences`, x is a plain batch (B, n, d).
  at::Tensor forward(const at::Tensor& x, const std::optional<Sequences>& sequences = std::nullopt);
  /// The layer that acts in place `index` of the stack; with tied weights the same one in every place.
  EncoderLayer layer(int64_t index) const;

  EncoderOptions options;
  Slots slots{nullptr};                   ///< where the attention takes slots
  torch::nn::ModuleList layers{nullptr};  ///< of EncoderLayer; one with tied weights
  TokenNorm norm{nullptr};                ///< pre-norm only
};
TORCH_MODULE(Encoder);

}  // namespace dba

#include "dba/nn/encoder.h"

#include "dba/nn/initialise.h"
#include "nn/rows.h"

namespace dba {

EncoderImpl::EncoderImpl(EncoderOptions options_) : options(std::move(options_)) {
  EncoderImpl::reset();
}

void EncoderImpl::reset() {
  check_positive("Encoder", "depth", options.depth());
  const auto& layer_options = options.layer();
  const auto different_layers = options.tied() ? 1 : options.depth();
  torch::nn::ModuleList stack;
  for (int64_t index = 0; index < different_layers; ++index) {
    // The last layer's Z goes nowhere, so that layer needs nothing to make it. A tied layer is the last one and the
    // ones before it.
    const bool another_follows = options.tied() ? options.depth() > 1 : index + 1 < options.depth();
    auto own_options = layer_options;
    own_options.attention_options().hands_on_z(another_follows).layer(index);
    stack->push_back(EncoderLayer(own_options));
  }
  slots = nullptr;
  if (stack->ptr<EncoderLayerImpl>(0)->attention_layer().takes_slots()) {
    const auto& attention = layer_options.attention_options();
    slots = register_module("slots", Slots(SlotsOptions(attention.d_p(), layer_options.d())
                                               .dropout(attention.z_dropout())
                                               .layer_norm(options.slots_layer_norm())));
  }
  layers = register_module("layers", stack);
  norm = nullptr;
  if (layer_options.norm_first()) {
    norm = register_module(
        "norm",
        TokenNorm(TokenNormOptions(layer_options.d()).kind(layer_options.norm()).eps(layer_options.norm_eps())));
  }
}

void EncoderImpl::reset_parameters() {
  initialise(*this, Initialise::torch_default);
}

void EncoderImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::Encoder(depth=" << options.depth() << ", tied=" << std::boolalpha << options.tied() << ")";
}

EncoderLayer EncoderImpl::layer(int64_t index) const {
  return EncoderLayer(layers->ptr<EncoderLayerImpl>(options.tied() ? 0 : index));
}

at::Tensor EncoderImpl::forward(const at::Tensor& x, const std::optional<Sequences>& given) {
  const auto sequences = given ? *given : plain_batch("Encoder::forward", "x", x, /*dimensions=*/3);
  const auto rows = as_rows("Encoder::forward", "x", x, sequences, options.layer().d());
  const auto mask = real_rows(sequences);
  auto tokens = clear_rows(rows, mask);
  auto z = slots ? slots(sequences.count()) : at::Tensor();
  for (int64_t index = 0; index < options.depth(); ++index) {
    const auto output = layer(index)->forward(tokens, sequences, z, mask);
    tokens = output.x;
    if (slots && output.z.defined()) {
      z = output.z;
    }
  }
  if (norm) {
    tokens = norm(tokens, mask);
  }
  return clear_rows(tokens, mask).view_as(x);
}

}  // namespace dba

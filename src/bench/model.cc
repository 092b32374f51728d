#include <torch/torch.h>

#include "bench/work.h"
#include "dba/nn/classifier.h"
#include "dba/nn/encoder.h"
#include "dba/nn/make_attention.h"

namespace dba::bench {
namespace {

constexpr double kTokenScale = 3.0;

DBAttentionOptions attention_options(const Method& method, const Sizes& sizes) {
  return DBAttentionOptions(sizes.d, sizes.heads)
      .d_p(sizes.d_p)
      .d_in(sizes.d_in)
      .form(method.form)
      .normalise(method.normalise)
      .order(method.order)
      .dropout(sizes.dropout);
}

/// An attention layer with the Z that a stack would hand it.
class LayerImpl : public torch::nn::Module {
 public:
  LayerImpl(const Method& method, const Sizes& sizes, int64_t length) : per_sequence_(sizes.slots_per_sequence) {
    const auto options = attention_options(method, sizes).z_update(ZUpdate::fixed).hands_on_z(false);
    attention_ = register_module("attention", make_attention(attention_text(method, length), options));
    if (interface().takes_slots()) {
      z_ = register_parameter("z", torch::randn({sizes.d_p, sizes.d}));
    }
  }

  at::Tensor forward(const at::Tensor& x, const Sequences& sequences) {
    const auto z = z_.defined() && per_sequence_ ? z_.unsqueeze(0).expand({sequences.count(), -1, -1}) : z_;
    return interface().attend(x, sequences, z, /*need_weights=*/false).y;
  }

 private:
  Attention& interface() const {
    return dynamic_cast<Attention&>(*attention_);
  }

  bool per_sequence_;
  std::shared_ptr<torch::nn::Module> attention_;
  at::Tensor z_;
};

EncoderOptions encoder_options(const Method& method, const Sizes& sizes, int64_t length) {
  const auto layer = EncoderLayerOptions(sizes.d, sizes.heads, sizes.d_ffn)
                         .attention(attention_text(method, length))
                         .attention_options(attention_options(method, sizes).z_dropout(sizes.dropout))
                         .dropout(sizes.dropout);
  return EncoderOptions(layer, sizes.depth).slots_layer_norm(true);
}

template <typename Module>
Model model_of(std::shared_ptr<Module> module) {
  return {module,
          [module](const at::Tensor& input, const Sequences& sequences) { return module->forward(input, sequences); }};
}

}  // namespace

Model make_model(Kind kind, const Method& method, const Sizes& sizes, int64_t length) {
  switch (kind) {
    case Kind::layer:
      return model_of(std::make_shared<LayerImpl>(method, sizes, length));
    case Kind::encoder:
      return model_of(std::make_shared<EncoderImpl>(encoder_options(method, sizes, length)));
    case Kind::train_step:
      break;
  }
  return model_of(std::make_shared<ClassifierImpl>(ClassifierOptions(encoder_options(method, sizes, length), kClasses)
                                                       .vocabulary(kVocabulary)
                                                       .max_length(length)
                                                       .embedding_dropout(sizes.dropout)
                                                       .head(HeadKind::mlp)
                                                       .head_hidden(sizes.d_ffn)));
}

at::Tensor make_input(Kind kind, const Case& one, const Sizes& sizes, at::Device device) {
  if (kind == Kind::train_step) {
    return torch::randint(kVocabulary, {one.batch, one.length}, torch::TensorOptions(at::kLong).device(device));
  }
  const auto tokens = torch::randn({one.batch, one.length, sizes.d}, torch::TensorOptions().device(device));
  return (tokens * kTokenScale).to(storage_type(one.precision));
}

}  // namespace dba::bench

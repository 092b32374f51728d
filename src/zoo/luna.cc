#include <torch/torch.h>

#include <cmath>

#include "dba/nn/slots.h"
#include "dba/ops.h"
#include "nn/padded.h"
#include "nn/wide_product.h"
#include "ops/checks.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

/// The bias of a slot that is not there. Operators multiply scores, which makes −∞ of the lowest numbers.
constexpr double kNoSlot = -1e30;

class Luna : public ZooAttention {
 public:
  Luna(const DBAttentionOptions& options_, const OptionValues& values_) : ZooAttention("luna", options_, values_) {
    const auto d = options.d();
    p_q = project("p_q", d, d);
    p_k = project("p_k", d, d);
    p_v = project("p_v", d, d);
    register_projections();
    if (options.z_update() == ZUpdate::own) {
      slots_ = register_module("slots", Slots(SlotsOptions(options.d_p(), d).dropout(options.z_dropout())));
    } else if (options.z_update() == ZUpdate::residual_norm && options.hands_on_z()) {
      z_norm_ = register_module("z_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({d})));
    }
  }
  bool takes_slots() const override {
    return options.z_update() != ZUpdate::own;
  }

 private:
  at::Tensor mix(const Stream& queries, const Stream& memory) override {
    return mix_with_slots(queries, memory, {}).y;
  }

  AttentionOutput mix_with_slots(const Stream& queries, const Stream& memory, const at::Tensor& given) override {
    const auto p = first_slots(given, queries.sequences.count());
    const auto dropout = ops::Dropout::draw(is_training() ? options.dropout() : 0.0, queries.rows.device());
    const auto c = pack(p, memory, dropout);
    AttentionOutput output;
    output.y = unpack(c, queries, memory.sequences, dropout);
    if (options.hands_on_z()) {
      output.z = options.z_update() == ZUpdate::residual_norm
                     ? z_norm_->forward(p + torch::dropout(c, options.z_dropout(), is_training()))
                 : options.z_update() == ZUpdate::replace ? c
                                                          : given;
    }
    return output;
  }

  at::Tensor first_slots(const at::Tensor& given, int64_t batch) {
    if (slots_) {
      TORCH_CHECK(!given.defined(), "dba::luna: z must be absent when z_update is own, got ", ops::describe(given));
      return slots_->forward(batch);
    }
    TORCH_CHECK(given.defined(), "dba::luna: z must be given, of shape (", options.d_p(), ", ", options.d(),
                ") or (B, ", options.d_p(), ", ", options.d(),
                "), got nothing; a layer that stands alone has z_update own");
    if (given.dim() == 3) {
      ops::check_shape("luna", "z", given, {batch, options.d_p(), options.d()});
    } else {
      ops::check_shape("luna", "z", given, {options.d_p(), options.d()});
    }
    return given;
  }

  /// C (B, d_p, d) = concat_h(softmax over tokens((P P_q)_h (X P_k)_hᵀ/√d_h) (X P_v)_h): `compress` of X itself, and
  /// P_v on what comes out.
  at::Tensor pack(const at::Tensor& p, const Stream& memory, const ops::Dropout& dropout) {
    const auto heads = options.heads(), d_h = head_width();
    const auto [rows, bias] = ops::fold(p_q->forward(p), p_k->weight, p_k->bias, heads, scale());
    ops::ScoreRows score;
    (rows.dim() == 3 ? score.each : score.shared) = rows;
    (rows.dim() == 3 ? score.each_bias : score.shared_bias) = bias;
    const auto summary = ops::compress(memory.rows, memory.sequences, score, dropout);
    const auto type = p_v->weight.scalar_type();
    const auto heads_first = [&](const at::Tensor& sums) {  // (B, H·d_p, …) → (H, B·d_p, …) in that type
      const auto apart = sums.unflatten(1, {heads, options.d_p()}).transpose(0, 1);
      return apart.to(type, /*non_blocking=*/false, /*copy=*/false, at::MemoryFormat::Contiguous).flatten(1, 2);
    };
    auto c = torch::bmm(heads_first(summary.c), p_v->weight.view({heads, d_h, options.d()}).transpose(1, 2));
    if (p_v->bias.defined()) {
      c = c + heads_first(summary.r).unsqueeze(2) * p_v->bias.view({heads, 1, d_h});
    }
    return c.transpose(0, 1).reshape({-1, options.d_p(), options.d()});
  }

  /// Y = concat_h(softmax over slots((X W_q)_h (C W_k)_hᵀ/√d_h) (C W_v)_h) W_o: `restore` with score rows of each
  /// sequence.
  at::Tensor unpack(const at::Tensor& c, const Stream& queries, const Sequences& packed, const ops::Dropout& dropout) {
    const auto heads = options.heads(), d_h = head_width();
    const auto of_slots = [&](torch::nn::Linear& layer) { return layer->forward(c.flatten(0, 1)); };  // (B·d_p, d)
    auto [rows, bias] = ops::fold(of_slots(w_k).view(c.sizes()), w_q->weight, w_q->bias, heads, scale());
    // Where all sequences are known to have d_p tokens or more, no slot is too many.
    const bool all_there = is_plain(packed) && packed.padded_length >= options.d_p();
    if (choice("mask_slots") == "true" && !all_there) {
      const auto slot = torch::arange(options.d_p(), packed.begin.options());
      const auto none = slot.unsqueeze(0).ge(packed.lengths().clamp_min(1).unsqueeze(1)).repeat({1, heads});
      bias = bias.defined() ? bias : rows.new_zeros({rows.size(0), rows.size(1)});
      bias = bias.to(product_type(bias.scalar_type())).masked_fill(none, kNoSlot);
    }
    // One product a head, for the slots of all sequences.
    const auto values = of_slots(w_v).unflatten(1, {heads, d_h}).transpose(0, 1);  // (H, B·d_p, d_h)
    const auto out = w_o->weight.t().reshape({heads, d_h, options.d()});
    const auto products = torch::bmm(values, out).unflatten(1, {-1, options.d_p()});  // (H, B, d_p, d)
    const auto m = products.transpose(0, 1).flatten(1, 2);
    return ops::restore(queries.rows, queries.sequences, rows, bias, m, w_o->bias, heads, /*linear=*/false, dropout);
  }

  double scale() const {
    return 1.0 / std::sqrt(static_cast<double>(head_width()));
  }

  torch::nn::Linear p_q{nullptr}, p_k{nullptr}, p_v{nullptr};
  Slots slots_{nullptr};                  // z_update own
  torch::nn::LayerNorm z_norm_{nullptr};  // residual_norm, where P is handed on
};

}  // namespace

Member luna_member() {
  Member member{
      .name = "luna",
      .title = "Luna",
      .paper = "Ma et al., Luna: Linear Unified Nested Attention, NeurIPS 2021, arXiv 2106.01540",
      .about =
          "Pack C = softmax over tokens((P P_q)(X P_k)ᵀ/√d_h) (X P_v) with d_p learned slots P, unpack Y = softmax "
          "over slots((X W_q)(C W_k)ᵀ/√d_h) (C W_v) W_o, per head, on this library's compress and restore operators. P "
          "goes from layer to layer as DBA's Z does: LayerNorm(P + C) by default. The number of slots, what happens to "
          "them and their dropout are given as DBA's: d_p, z_update and z_dropout of DBAttentionOptions, model.d_p and "
          "model.z_update of a configuration, d_p= in Python. With mask_slots a sequence shorter than d_p sees only as "
          "many slots as it has tokens, as in the released code.",
      .options = {{"mask_slots", "true", "whether a short sequence uses fewer slots", 0, {"false", "true"}}},
      .capabilities = {},
      .build = built<Luna>};
  member.capabilities.cross_attention = true;
  member.capabilities.dropout = true;
  member.capabilities.slots = true;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·d_p";
  return member;
}

}  // namespace dba::zoo

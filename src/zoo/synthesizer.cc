#include <torch/torch.h>

#include <array>
#include <cmath>

#include "dba/ops.h"
#include "nn/transient_map.h"
#include "ops/checks.h"
#include "zoo/blocks.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

using at::Tensor;

/// softmax over j(S) V with dropout on the map: scores (B or 1, H, 1, n, n), shared where their first extent is 1,
/// values (B, H, 1, n, w), mask (B, 1, 1, 1, n) of the keys that exist. The maps of the sequences exist for some
/// queries at a time, and again for their gradients.
struct MapsOfScores : torch::autograd::Function<MapsOfScores> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& scores, const Tensor& values,
                        const Tensor& mask, const std::optional<Tensor>& rng, double dropout) {
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    const Problem problem{scores, values, mask, rng.value_or(Tensor()), dropout};
    context->save_for_backward({scores, values, mask, problem.rng});
    context->saved_data["dropout"] = dropout;
    auto out = torch::empty_like(values);
    for (const auto& piece : problem.pieces()) {
      const auto kept = problem.kept(piece);
      const auto map = problem.map(piece);
      const auto dropped = (kept.defined() ? map * kept : map).to(values.scalar_type());
      piece.of(out, 4).copy_(torch::matmul(dropped, piece.of(values, 3)));
    }
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto &scores = saved[0], &values = saved[1];
    const Problem problem{scores, values, saved[2], saved[3], context->saved_data["dropout"].toDouble()};
    const auto dy = gradients[0].to(values.scalar_type());
    auto d_scores = torch::zeros_like(scores), d_values = torch::zeros_like(values);
    for (const auto& piece : problem.pieces()) {
      const auto kept = problem.kept(piece);
      const auto map = problem.map(piece), given = piece.of(dy, 4);
      const auto dropped = (kept.defined() ? map * kept : map).to(values.scalar_type());
      piece.of(d_values, 3).add_(torch::matmul(dropped.transpose(3, 4), given));
      auto pull = torch::matmul(given, piece.of(values, 3).transpose(3, 4)).to(map.scalar_type());
      pull = kept.defined() ? pull.mul_(kept) : pull;
      const auto slope = at::_softmax_backward_data(pull, map, 4, map.scalar_type())
                             .masked_fill_(piece.of(problem.mask, 3).logical_not(), 0);
      piece.of(d_scores, 4).add_(scores.size(0) == 1 ? slope.sum(0, /*keepdim=*/true) : slope);
    }
    return {d_scores, d_values, {}, {}, {}};
  }

 private:
  struct Problem {
    Tensor scores, values, mask, rng;
    double dropout;

    std::array<int64_t, 4> sizes() const {
      return {values.size(0), values.size(1), 1, values.size(3)};
    }
    std::vector<MapPiece> pieces() const {
      return map_pieces(sizes(), values.size(3), values.device());
    }
    at::ScalarType wide() const {
      return ops::accumulation_type(scores.scalar_type());
    }
    /// Of a piece, (b, h, 1, q, n).
    Tensor map(const MapPiece& piece) const {
      return masked_scores(piece.of(scores, 4).to(wide()), piece.of(mask, 3)).softmax(4);
    }
    Tensor kept(const MapPiece& piece) const {
      return dropout > 0 ? piece.dropout_mask(sizes(), values.size(3), dropout, rng, wide()) : Tensor();
    }
  };
};

class Synthesizer : public ZooAttention {
 public:
  Synthesizer(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("synthesizer", options_, values_) {
    const auto d = options.d(), heads = options.heads(), longest = integer("max_length");
    const auto& kind = choice("kind");
    if (kind == "dense" || kind == "factorised_dense") {
      w_1_ = project("w_1", d, d);
    }
    if (kind == "dense") {
      hold_parameter(w_2_, "w_2", torch::empty({heads, head_width(), longest}));
    } else if (kind == "factorised_dense") {
      const auto a = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(longest))));
      hold_parameter(w_a_, "w_a", torch::empty({heads, head_width(), a}));
      hold_parameter(w_b_, "w_b", torch::empty({heads, head_width(), (longest + a - 1) / a}));
    } else if (kind == "factorised_random") {
      hold_parameter(r_1_, "r_1", torch::empty({heads, longest, integer("rank")}));
      hold_parameter(r_2_, "r_2", torch::empty({heads, longest, integer("rank")}));
    } else {
      hold_parameter(r_, "r", torch::empty({heads, longest, longest}));
    }
    if (kind == "mixed") {
      w_q = project("w_q", d, d);
      w_k = project("w_k", d, d);
      hold_parameter(alpha_, "alpha", torch::empty({2}));
    }
    w_v = project("w_v", d, d);
    w_o = project("w_o", d, d);
  }

 private:
  void draw_parameters() override {
    const auto draw = [](at::Tensor& parameter, int64_t width) {
      if (parameter.defined()) {
        torch::nn::init::normal_(parameter, 0.0, 1.0 / std::sqrt(static_cast<double>(width)));
      }
    };
    draw(w_2_, head_width());
    draw(w_a_, head_width());
    draw(w_b_, head_width());
    draw(r_, 1);
    draw(r_1_, integer("rank"));
    draw(r_2_, 1);
    if (alpha_.defined()) {
      torch::nn::init::zeros_(alpha_);
    }
  }

  /// Scores (B or 1, H, n, n) that no token is compared for.
  at::Tensor synthetic(const Stream& stream, const Blocks& blocks) {
    const auto n = blocks.size;
    if (r_.defined()) {
      return r_.slice(1, 0, n).slice(2, 0, n).unsqueeze(0);
    }
    if (r_1_.defined()) {
      return torch::matmul(r_1_.slice(1, 0, n), r_2_.slice(1, 0, n).transpose(1, 2)).unsqueeze(0);
    }
    const auto hidden = blocks.take_whole(w_1_->forward(stream.rows).relu(), options.heads());
    if (w_2_.defined()) {
      return torch::matmul(hidden, w_2_.slice(2, 0, n));
    }
    const auto a = torch::matmul(hidden, w_a_), b = torch::matmul(hidden, w_b_);
    const auto key = torch::arange(n, blocks.lengths.options());
    return a.index_select(3, key.remainder(a.size(3))) * b.index_select(3, key.div(a.size(3), "floor"));
  }

  at::Tensor mix(const Stream& stream, const Stream&) override {
    const auto blocks = Blocks::whole(stream.sequences);
    const auto heads = options.heads();
    const auto v = blocks.take_whole(w_v->forward(stream.rows), heads);
    const auto scores = synthetic(stream, blocks);
    if (scores.size(0) == 1 && !alpha_.defined() && drop_rate() == 0 && !blocks.real().defined()) {
      // One map for all sequences: their values stand side by side.
      const auto beside = v.permute({1, 2, 0, 3}).flatten(2);  // (H, n, B·d_h)
      const auto mixed = torch::matmul(scores.squeeze(0).softmax(2), beside).unflatten(2, {blocks.batch, -1});
      return w_o->forward(blocks.give_whole(mixed.permute({2, 0, 1, 3})));
    }
    const auto exists = blocks.valid().unsqueeze(1);  // (B, 1, 1, n)
    if (!alpha_.defined()) {
      const auto drawn = ops::Dropout::draw(drop_rate(), v.device());
      const auto mixed = MapsOfScores::apply(scores.unsqueeze(2), v.unsqueeze(2), exists.unsqueeze(2),
                                             drawn.rng.defined() ? std::optional(drawn.rng) : std::nullopt, drawn.p);
      return w_o->forward(blocks.give_whole(mixed.squeeze(2)));
    }
    const auto q = blocks.take_whole(w_q->forward(stream.rows), heads);
    const auto k = blocks.take_whole(w_k->forward(stream.rows), heads);
    const auto compared = torch::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(head_width()));
    const auto share = alpha_.softmax(0);
    const auto map = share[0] * masked_scores(scores.expand({blocks.batch, -1, -1, -1}), exists).softmax(3) +
                     share[1] * masked_scores(compared, exists).softmax(3);
    return w_o->forward(blocks.give_whole(torch::matmul(drop(map), v)));
  }

  torch::nn::Linear w_1_{nullptr};
  at::Tensor w_2_;        // (H, d_h, max_length)
  at::Tensor w_a_, w_b_;  // (H, d_h, a), (H, d_h, b), a·b ≥ max_length
  at::Tensor r_;          // (H, max_length, max_length)
  at::Tensor r_1_, r_2_;  // (H, max_length, rank)
  at::Tensor alpha_;      // (2)
};

}  // namespace

Member synthesizer_member() {
  Member member{
      .name = "synthesizer",
      .title = "Synthesizer",
      .paper = "Tay et al., Synthesizer: Rethinking Self-Attention in Transformer Models, ICML 2021, arXiv 2005.00743",
      .about =
          "Y = softmax over j(S) V with scores that compare no tokens. dense: S_i = max(x_i W_1 + b_1, 0) W_2, a "
          "column for each position; factorised_dense: two such rows A_i, B_i with S_ij = A_i[j mod a] B_i[⌊j/a⌋]; "
          "random: S = R, a learned matrix; factorised_random: S = R_1 R_2ᵀ of a rank; mixed: α_1 softmax(R) + α_2 "
          "softmax(Q Kᵀ/√d_h), α = softmax of two learned numbers. A sequence of n tokens uses the first n rows and "
          "columns. Long-Range Arena's effective setting adds R to the dot product's scores under one softmax.",
      .options = {{"kind",
                   "random",
                   "where the scores come from",
                   0,
                   {"dense", "factorised_dense", "random", "factorised_random", "mixed"}},
                  {"rank", "8", "of factorised_random", 1, {}},
                  max_length_option()},
      .capabilities = {},
      .build = built<Synthesizer>};
  member.capabilities.learned_per_position = true;
  member.capabilities.needs_max_length = true;
  member.capabilities.dropout = true;
  member.capabilities.growth = Growth::quadratic;
  member.capabilities.complexity = "n²";
  return member;
}

}  // namespace dba::zoo

#include <torch/torch.h>

#include <cmath>

#include "zoo/blocks.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

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
    const bool drops = is_training() && options.dropout() > 0;
    auto scores = synthetic(stream, blocks);
    if (scores.size(0) == 1 && !alpha_.defined() && !drops && !blocks.real().defined()) {
      // One map for all sequences: their values stand side by side.
      const auto beside = v.permute({1, 2, 0, 3}).flatten(2);  // (H, n, B·d_h)
      const auto mixed = torch::matmul(scores.squeeze(0).softmax(2), beside).unflatten(2, {blocks.batch, -1});
      return w_o->forward(blocks.give_whole(mixed.permute({2, 0, 1, 3})));
    }
    const auto exists = blocks.valid().unsqueeze(1);  // (B, 1, 1, n)
    auto map = masked_scores(scores.expand({blocks.batch, -1, -1, -1}), exists).softmax(3);
    if (alpha_.defined()) {
      const auto q = blocks.take_whole(w_q->forward(stream.rows), heads);
      const auto k = blocks.take_whole(w_k->forward(stream.rows), heads);
      scores = torch::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(head_width()));
      const auto share = alpha_.softmax(0);
      map = share[0] * map + share[1] * masked_scores(scores, exists).softmax(3);
    }
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

#include <torch/torch.h>

#include <array>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "dba/ops.h"
#include "nn/transient_map.h"
#include "ops/checks.h"
#include "zoo/blocks.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

using at::Tensor;

/// softmax over j(S) V with dropout on the map: scores (B or 1, H, 1, n, n), shared where their first extent is 1,
/// values (B, H, 1, n, w), mask (B, 1, 1, 1, n) of the keys that exist, none where all do. Shared scores without a mask
/// have one map, and sequences differ in what they drop alone. Maps exist for some queries at a time, and again for
/// their gradients.
struct MapsOfScores : torch::autograd::Function<MapsOfScores> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& scores, const Tensor& values,
                        const std::optional<Tensor>& mask, const std::optional<Tensor>& rng, double dropout) {
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    const Problem problem{scores, values, mask.value_or(Tensor()), rng.value_or(Tensor()), dropout};
    context->save_for_backward({scores, values, problem.mask, problem.rng});
    context->saved_data["dropout"] = dropout;
    auto out = torch::empty_like(values);
    for (const auto& [place, pieces] : problem.pieces_by_map()) {
      const auto weights = problem.weights(problem.map(pieces.front()));
      for (const auto& piece : pieces) {
        auto kept = problem.kept(piece);
        const auto dropped = (kept.defined() ? kept.mul_(weights) : weights).to(values.scalar_type());
        piece.of(out, 4).copy_(torch::matmul(dropped, piece.of(values, 3)));
      }
    }
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    const auto saved = context->get_saved_variables();
    const auto &scores = saved[0], &values = saved[1];
    const Problem problem{scores, values, saved[2], saved[3], context->saved_data["dropout"].toDouble()};
    const auto type = values.scalar_type(), wide = problem.wide();
    const bool shared = scores.size(0) == 1;
    const auto dy = gradients[0].to(type);
    // Several pieces add to the gradients of a value, and to those of a shared score.
    auto d_values = torch::zeros_like(values, values.options().dtype(wide));
    auto d_scores = shared ? torch::zeros_like(scores, scores.options().dtype(wide)) : torch::empty_like(scores);
    for (const auto& [place, pieces] : problem.pieces_by_map()) {
      const auto map = problem.map(pieces.front()), weights = problem.weights(map);
      Tensor pulled;  // at the map: by all sequences that have it
      for (const auto& piece : pieces) {
        const auto kept = problem.kept(piece), given = piece.of(dy, 4);
        const auto dropped = (kept.defined() ? weights * kept : weights).to(type);
        piece.of(d_values, 3).add_(torch::matmul(dropped.transpose(3, 4), given));
        auto pull = torch::matmul(given, piece.of(values, 3).transpose(3, 4)).to(weights.scalar_type());
        pull = kept.defined() ? pull.mul_(kept) : pull;
        pull = pull.size(0) > map.size(0) ? pull.sum(0, /*keepdim=*/true, wide) : pull;
        pulled = pulled.defined() ? pulled.add_(pull) : pull.to(wide);
      }
      pulled = problem.correction() == 1 ? pulled : pulled.mul_(problem.correction());
      auto slope = at::_softmax_backward_data(pulled, map, 4, wide);
      if (problem.mask.defined()) {
        slope.masked_fill_(pieces.front().of(problem.mask, 3).logical_not(), 0);
      }
      const auto own = pieces.front().of(d_scores, 4);
      if (shared) {
        own.add_(slope.size(0) > 1 ? slope.sum(0, /*keepdim=*/true) : slope);
      } else {
        own.copy_(slope);
      }
    }
    return {d_scores.to(scores.scalar_type()), d_values.to(type), {}, {}, {}};
  }

 private:
  struct Problem {
    Tensor scores, values, mask, rng;
    double dropout;

    bool one_map() const {
      return scores.size(0) == 1 && !mask.defined();
    }
    std::array<int64_t, 4> sizes() const {
      return {values.size(0), values.size(1), 1, values.size(3)};
    }
    /// By sequence, unless one map serves all, head and query. One map's are of many sequences rather than many heads.
    std::map<std::array<int64_t, 3>, std::vector<MapPiece>> pieces_by_map() const {
      std::map<std::array<int64_t, 3>, std::vector<MapPiece>> by_map;
      auto order = sizes();
      if (one_map()) {
        std::swap(order[0], order[1]);
      }
      for (auto piece : map_pieces(order, values.size(3), values.device())) {
        if (one_map()) {
          std::swap(piece.first[0], piece.first[1]);
          std::swap(piece.count[0], piece.count[1]);
        }
        by_map[{one_map() ? 0 : piece.first[0], piece.first[1], piece.first[3]}].push_back(piece);
      }
      return by_map;
    }
    at::ScalarType wide() const {
      return ops::accumulation_type(scores.scalar_type());
    }
    /// The type of maps with dropout: that of the values where one map serves many products.
    at::ScalarType dropped_type() const {
      return one_map() ? values.scalar_type() : wide();
    }
    /// Of a piece, (b, h, 1, q, n), or (1, h, 1, q, n) of one map.
    Tensor map(const MapPiece& piece) const {
      return masked_scores(piece.of(scores, 4).to(wide()), mask.defined() ? piece.of(mask, 3) : mask).softmax(4);
    }
    /// The map as `kept` multiplies it.
    Tensor weights(const Tensor& map) const {
      return correction() == 1 ? map.to(dropped_type()) : (map * correction()).to(dropped_type());
    }
    Tensor kept(const MapPiece& piece) const {
      return dropout > 0 ? piece.dropout_mask(sizes(), values.size(3), dropout, rng, dropped_type()) : Tensor();
    }
    /// What `kept` lacks of 1/(1 − p) where 16 bits round it, as a factor.
    double correction() const {
      if (dropout == 0 || dropped_type() == wide()) {
        return 1;
      }
      const double over_rate = 1 / (1 - dropout);
      return over_rate / at::scalar_tensor(over_rate, dropped_type()).item<double>();
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
      return first_of(first_of(r_, 1, n), 2, n).unsqueeze(0);
    }
    if (r_1_.defined()) {
      return torch::matmul(first_of(r_1_, 1, n), first_of(r_2_, 1, n).transpose(1, 2)).unsqueeze(0);
    }
    const auto hidden = blocks.take_whole(w_1_->forward(stream.rows).relu(), options.heads());
    if (w_2_.defined()) {
      return torch::matmul(hidden, first_of(w_2_, 2, n));
    }
    const auto a = torch::matmul(hidden, w_a_), b = torch::matmul(hidden, w_b_);
    const auto key = torch::arange(n, blocks.numbers());
    return a.index_select(3, key.remainder(a.size(3))) * b.index_select(3, key.div(a.size(3), "floor"));
  }

  at::Tensor mix(const Stream& stream, const Stream&) override {
    const auto blocks = Blocks::whole(stream.sequences);
    const auto heads = options.heads();
    const auto values = w_v->forward(stream.rows);
    const auto exists = blocks.real().defined() ? blocks.valid().unsqueeze(1) : Tensor();  // (B, 1, 1, n)
    const auto scores = synthetic(stream, blocks);
    if (!alpha_.defined() && scores.size(0) == 1 && drop_rate() == 0 && !exists.defined()) {
      return w_o->forward(by_one_map(scores.squeeze(0).softmax(2), values, blocks.batch));
    }
    const auto v = blocks.take_whole(values, heads);
    Tensor mixed;
    if (alpha_.defined()) {
      // One softmax over both kinds of scores: the queries carry the weight of theirs.
      const auto share = alpha_.softmax(0);
      const auto q = blocks.take_whole(w_q->forward(stream.rows), heads) * share[1];
      const auto k = blocks.take_whole(w_k->forward(stream.rows), heads);
      const Seen all{k.unsqueeze(2), v.unsqueeze(2), exists.defined() ? exists.unsqueeze(2) : exists};
      mixed = transient_map_attention(q.unsqueeze(2), {all}, {scores.unsqueeze(2), share[0]}, drop_rate()).squeeze(2);
    } else {
      mixed = by_scores(scores, v, exists, ops::Dropout::draw(drop_rate(), v.device()));
    }
    return w_o->forward(blocks.give_whole(mixed));
  }

  /// A map (H, n, n) times the values of all sequences, (B·n, H·w), which stand side by side.
  static at::Tensor by_one_map(const at::Tensor& map, const at::Tensor& values, int64_t batch) {
    const auto heads = map.size(0), n = map.size(1);
    const auto beside = values.reshape({batch, n, heads, -1}).permute({2, 1, 0, 3}).reshape({heads, n, -1});
    return torch::bmm(map, beside).view({heads, n, batch, -1}).permute({2, 1, 0, 3}).reshape(values.sizes());
  }

  static at::Tensor by_scores(const at::Tensor& scores, const at::Tensor& v, const at::Tensor& exists,
                              const ops::Dropout& dropout) {
    const auto given = [](const Tensor& x) { return x.defined() ? std::optional(x) : std::nullopt; };
    const auto mask = exists.defined() ? exists.unsqueeze(2) : exists;
    return MapsOfScores::apply(scores.unsqueeze(2), v.unsqueeze(2), given(mask), given(dropout.rng), dropout.p)
        .squeeze(2);
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
          "random: S = R, a learned matrix; factorised_random: S = R_1 R_2ᵀ of a rank; mixed, which does "
          "compare tokens: S = α_1 R + α_2 Q Kᵀ/√d_h, α = softmax of two learned numbers. A sequence of n tokens uses "
          "the first n rows and columns. Long-Range Arena's effective setting adds R to the dot product's scores as "
          "well, without α.",
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

#include <torch/torch.h>

#include <cmath>

#include "nn/transient_map.h"
#include "ops/checks.h"
#include "zoo/blocks.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

using at::Tensor;

/// Σ_j (exp(q_i·k_j/√d_h − c_i) − exp(l_i − c_i) f_i·g_j) v_j over the pairs of the band, and c_i, the larger of l_i
/// and the highest score of i there: q (B, H, blocks, size, d_h), f (…, m), l (…, 1), and k, g, v of the blocks beside
/// each. The pairs exist for some queries at a time, and again for their gradients; l and c have none.
struct BandDifference : torch::autograd::Function<BandDifference> {
  /// tensors: q, f, then k, g and v of every block beside; masks: whether their pairs are in the band.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, at::TensorList tensors,
                                                const std::vector<Tensor>& masks, const Tensor& lost) {
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    auto saved = tensors.vec();
    saved.insert(saved.end(), masks.begin(), masks.end());
    saved.push_back(lost);
    context->save_for_backward(saved);
    const Problem problem(saved);
    auto highest = torch::empty_like(lost);
    auto sum = torch::empty({lost.size(0), lost.size(1), lost.size(2), lost.size(3), problem.parts[0].v.size(4)},
                            problem.q.options());
    for (const auto& piece : problem.pieces) {
      const Pairs pairs(problem, piece);
      piece.of(highest, 4).copy_(pairs.highest);
      piece.of(sum, 4).copy_(torch::matmul((pairs.exact - pairs.estimate).to(problem.type), pairs.beside(&Part::v)));
    }
    context->mark_non_differentiable({highest});
    return {sum, highest};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    check_first_derivative("scatterbrain");
    const Problem problem(context->get_saved_variables());
    const auto dy = gradients[0].to(problem.type);
    auto dq = torch::empty_like(problem.q), df = torch::empty_like(problem.f);
    std::vector<Part> sums;
    for (const auto& part : problem.parts) {
      sums.push_back({torch::zeros_like(part.k), torch::zeros_like(part.g), torch::zeros_like(part.v), {}});
    }
    for (const auto& piece : problem.pieces) {
      const Pairs pairs(problem, piece);
      const auto given = piece.of(dy, 4);
      const auto add = [&](Tensor Part::*to, const Tensor& product) {
        const auto size = product.size(3) / static_cast<int64_t>(sums.size());
        for (size_t i = 0; i < sums.size(); ++i) {
          piece.of(sums[i].*to, 3).add_(product.narrow(3, static_cast<int64_t>(i) * size, size));
        }
      };
      const auto map = (pairs.exact - pairs.estimate).to(problem.type);
      add(&Part::v, torch::matmul(map.transpose(3, 4), given));
      const auto pull = torch::matmul(given, pairs.beside(&Part::v).transpose(3, 4)).masked_fill_(pairs.outside, 0);
      const auto slope = (pull * pairs.exact).mul_(problem.scale).to(problem.type);
      piece.of(dq, 4).copy_(torch::matmul(slope, pairs.beside(&Part::k)));
      add(&Part::k, torch::matmul(slope.transpose(3, 4), piece.of(problem.q, 4)));
      piece.of(df, 4).copy_(torch::matmul(pull, pairs.beside(&Part::g)).mul_(-pairs.share));
      add(&Part::g, torch::matmul(pull.transpose(3, 4), pairs.features).neg_());
    }
    torch::autograd::variable_list all{dq, df};
    for (const auto& sum : sums) {
      all.insert(all.end(), {sum.k, sum.g, sum.v});
    }
    all.resize(all.size() + 2);
    return all;
  }

 private:
  struct Part {
    Tensor k, g, v, mask;
  };

  struct Problem {
    explicit Problem(const std::vector<Tensor>& saved)
        : q(saved[0]),
          f(saved[1]),
          lost(saved.back()),
          type(q.scalar_type()),
          scale(1.0 / std::sqrt(static_cast<double>(q.size(4)))) {
      const auto count = (saved.size() - 3) / 4;
      for (size_t i = 0; i < count; ++i) {
        parts.push_back({saved[2 + 3 * i], saved[3 + 3 * i], saved[4 + 3 * i], saved[2 + 3 * count + i]});
      }
      const auto keys = static_cast<int64_t>(count) * parts[0].k.size(3);
      // The queries of a block stay together, so that a piece has all that its keys get from them.
      pieces = map_pieces({q.size(0), q.size(1), q.size(2), 1}, q.size(3) * keys, q.device());
      for (auto& piece : pieces) {
        piece.count[3] = q.size(3);
      }
    }
    const Tensor q, f, lost;
    const at::ScalarType type;
    const double scale;
    std::vector<Part> parts;
    std::vector<MapPiece> pieces;
  };

  /// The pairs of a piece, (b, h, g, size, keys beside).
  struct Pairs {
    Pairs(const Problem& problem_, const MapPiece& piece_) : problem(problem_), piece(piece_) {
      const auto lost = piece.of(problem.lost, 4);
      std::vector<Tensor> masks;
      for (const auto& part : problem.parts) {
        masks.push_back(piece.of(part.mask, 4));
      }
      outside = torch::cat(masks, 4).logical_not_();
      exact = torch::matmul(piece.of(problem.q, 4), beside(&Part::k).transpose(3, 4)).to(lost.scalar_type());
      exact.mul_(problem.scale).masked_fill_(outside, low_score(exact.scalar_type()));
      highest = torch::maximum(exact.amax({4}, true), lost);
      exact.sub_(highest).exp_();
      share = (lost - highest).exp_().to(problem.type);
      features = piece.of(problem.f, 4) * share;
      estimate = torch::matmul(features, beside(&Part::g).transpose(3, 4)).masked_fill_(outside, 0);
    }
    Tensor beside(Tensor Part::*of) const {
      std::vector<Tensor> blocks;
      for (const auto& part : problem.parts) {
        blocks.push_back(piece.of(part.*of, 3));
      }
      return torch::cat(blocks, 3);
    }
    const Problem& problem;
    const MapPiece& piece;
    Tensor outside, exact, highest, share, features, estimate;
  };
};

class Scatterbrain : public ZooAttention {
 public:
  Scatterbrain(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("scatterbrain", options_, values_) {
    register_projections();
    hold_buffer(features_, "features", orthogonal_features(integer("features"), head_width(), integer("seed")));
  }

 private:
  /// w·x' − |x'|²/2 for x (B, H, blocks, size, d_h): the logarithms of √m times the features.
  at::Tensor exponents(const at::Tensor& x) const {
    const auto scaled = x * std::pow(static_cast<double>(head_width()), -0.25);
    return torch::matmul(scaled, features_.t()) - scaled.square().sum(-1, /*keepdim=*/true) / 2;
  }

  at::Tensor mix(const Stream& stream, const Stream&) override {
    const auto blocks = Blocks::up_to(stream.sequences, integer("window") / 2);
    const auto heads = options.heads();
    const auto taken = [&](torch::nn::Linear& layer) { return blocks.take(layer->forward(stream.rows), heads); };
    const auto q = taken(w_q), k = taken(w_k), v = taken(w_v);
    const auto exists = blocks.valid().unsqueeze(1).unsqueeze(4);  // (B, 1, blocks, size, 1)

    // Features lose their largest exponent; `lost` is what a product of features is short of, as a logarithm.
    const auto log_q = exponents(q);
    const auto log_k = masked_scores(exponents(k), exists);
    const auto highest_q = log_q.amax({4}, true).detach();
    const auto highest_k = log_k.amax({2, 3, 4}, true).detach();
    const auto f_q = (log_q - highest_q).exp();
    const auto f_k = (log_k - highest_k).exp().masked_fill(exists.logical_not(), 0);
    const auto lost = highest_q + highest_k - std::log(static_cast<double>(integer("features")));

    const Band band(blocks);
    const auto type = q.scalar_type();
    // A last column of ones: sums of the weights beside sums of the values.
    const auto more_v = at::constant_pad_nd(v, {0, 1}, 1);
    const auto near_k = band.beside(k), near_f = band.beside(f_k.to(type)), near_v = band.beside(more_v);
    std::vector<Tensor> tensors{q, f_q.to(type)};
    for (size_t i = 0; i < near_k.size(); ++i) {
      tensors.insert(tensors.end(), {near_k[i], near_f[i], near_v[i]});
    }
    const auto wide = ops::accumulation_type(type);
    const auto near = BandDifference::apply(at::TensorList(tensors), band.masks, lost.to(wide));
    const auto share = (lost - near[1]).exp();
    const auto sums = torch::matmul(f_k.flatten(2, 3).transpose(2, 3), more_v.flatten(2, 3));  // (B, H, m, d_h + 1)
    const auto far = torch::matmul(f_q.flatten(2, 3), sums).unflatten(2, {blocks.count, blocks.size});
    const auto all = near[0] + far * share;
    const auto weight = all.narrow(4, head_width(), 1).masked_fill(exists.logical_not(), 1);
    const auto mixed = (all.narrow(4, 0, head_width()) / weight).to(type);
    return w_o->forward(blocks.give(mixed));
  }

  at::Tensor features_;  // (m, d_h), shared by the heads
};

}  // namespace

Member scatterbrain_member() {
  Member member{
      .name = "scatterbrain",
      .title = "Scatterbrain",
      .paper = "Chen et al., Scatterbrain: Unifying Sparse and Low-rank Attention, NeurIPS 2021, arXiv 2110.15343",
      .about =
          "Exact in a band, estimated elsewhere, one normaliser: y_i = Σ_j a_ij v_j / Σ_j a_ij with a_ij = "
          "exp(q_i·k_j/√d_h) where |i − j| ≤ ⌊w/2⌋ and φ(q_i)·φ(k_j) beyond, φ the Performer's positive features "
          "exp(w·x' − |x'|²/2)/√m on orthogonal directions from the seed. Computed as the estimate of all pairs plus "
          "the difference in the band.",
      .options = {{"window", "64", "width w of the band", 2, {}},
                  {"features", "32", "random directions m", 1, {}},
                  seed_option()},
      .capabilities = {},
      .build = built<Scatterbrain>};
  member.capabilities.deterministic = false;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·(window + features)";
  return member;
}

}  // namespace dba::zoo

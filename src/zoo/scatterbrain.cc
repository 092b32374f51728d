#include <torch/torch.h>

#include <cmath>

#include "zoo/blocks.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

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
    const Blocks blocks(stream.sequences, integer("window") / 2);
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
    const auto near_mask = torch::cat(band.masks, 4);
    const auto beside = [&](const at::Tensor& rows) { return torch::cat(band.beside(rows), 3); };
    const auto near_k = beside(k), near_v = beside(v);
    const auto scores = masked_scores(
        torch::matmul(q, near_k.transpose(3, 4)) / std::sqrt(static_cast<double>(head_width())), near_mask);
    const auto highest = torch::maximum(scores.amax({4}, true), lost).detach();
    const auto share = (lost - highest).exp();
    const auto estimate = torch::matmul(f_q, beside(f_k).transpose(3, 4)) * share;
    const auto near = ((scores - highest).exp() - estimate).masked_fill(near_mask.logical_not(), 0);

    const auto sums = torch::matmul(f_k.flatten(2, 3).transpose(2, 3), v.flatten(2, 3));  // (B, H, m, d_h)
    const auto total = f_k.sum({2, 3}).unsqueeze(3);                                      // (B, H, m, 1)
    const auto far = [&](const at::Tensor& of) {
      return torch::matmul(f_q.flatten(2, 3), of).unflatten(2, {blocks.count, blocks.size}) * share;
    };
    const auto weight = near.sum(4, /*keepdim=*/true) + far(total);
    const auto mixed = (torch::matmul(near, near_v) + far(sums)) / weight.masked_fill(exists.logical_not(), 1);
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

#include <torch/torch.h>

#include "nn/wide_product.h"
#include "ops/checks.h"
#include "zoo/block_attention.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

/// exp(scores) with rows and columns brought to sum 1 in turn; zero outside the mask.
at::Tensor balanced(at::Tensor scores, const at::Tensor& mask, int64_t iterations) {
  scores = masked_scores(scores, mask);
  for (int64_t i = 0; i < iterations; ++i) {
    for (const int64_t axis : {-1, -2}) {
      scores = masked_scores(scores.log_softmax(axis), mask);
    }
  }
  return mask.defined() ? scores.exp().masked_fill(mask.logical_not(), 0) : scores.exp();
}

class Sinkhorn : public ZooAttention {
 public:
  Sinkhorn(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("sinkhorn", options_, values_) {
    register_projections();
    const auto d = options.d();
    most_blocks_ = (integer("max_length") + integer("block") - 1) / integer("block");
    w_b_ = project("w_b", d, d);
    w_p_ = project("w_p", d, options.heads() * most_blocks_);
  }

 private:
  at::Tensor mix(const Stream& stream, const Stream&) override {
    const auto blocks = Blocks::up_to(stream.sequences, integer("block"));
    const auto heads = options.heads(), count = blocks.count;
    const auto taken = [&](torch::nn::Linear& layer) { return blocks.take(layer->forward(stream.rows), heads); };
    const auto q = taken(w_q), k = taken(w_k), v = taken(w_v);

    const auto scores = sort_scores(blocks.take(stream.rows, 1).squeeze(1));
    const bool all_there = !blocks.real().defined();
    at::Tensor between, filled;  // which pairs of blocks there are, and which places of a block some block fills
    if (!all_there) {
      const auto there = torch::arange(count, blocks.numbers()).lt(blocks.counts().unsqueeze(1));
      between = there.unsqueeze(1).logical_and(there.unsqueeze(2)).unsqueeze(1);  // (B, 1, blocks, blocks)
      // Places beyond the length of a sequence that is shorter than a block.
      const auto place = torch::arange(blocks.size, blocks.numbers());
      filled = place.lt(blocks.lengths().unsqueeze(1)).view({-1, 1, 1, 1, blocks.size});
    }
    const auto sort = balanced(scores.narrow(3, 0, count).transpose(1, 2), between, integer("iterations"));
    const auto sorted = [&](const at::Tensor& rows) {
      return wide_matmul(sort, rows.flatten(3)).to(rows.scalar_type()).unflatten(3, {rows.size(3), rows.size(4)});
    };
    const std::vector<Seen> seen{{k, v, key_mask(blocks.real())}, {sorted(k), sorted(v), filled}};
    const auto mixed = attend_blocks(q, seen, drop_rate(), blocks.key("sinkhorn"));
    return w_o->forward(blocks.give(mixed));
  }

  /// Of tokens in blocks, (B, blocks, size, d): a row of scores for every block and head, (B, blocks, H, most blocks).
  /// The sum of a block leaves float16 for tokens of a thousand; float32 costs nothing for a row a block.
  at::Tensor sort_scores(const at::Tensor& tokens) const {
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    const auto type = ops::accumulation_type(tokens.scalar_type());
    const auto through = [&](const torch::nn::Linear& layer, const at::Tensor& rows) {
      return at::linear(rows, layer->weight.to(type), layer->bias.defined() ? layer->bias.to(type) : layer->bias);
    };
    const auto sums = tokens.sum({2}, /*keepdim=*/false, type);  // (B, blocks, d)
    const auto scores = through(w_p_, through(w_b_, sums).relu()).unflatten(2, {options.heads(), most_blocks_});
    return choice("scores") == "relu" ? scores.relu() : scores;
  }

  int64_t most_blocks_;
  torch::nn::Linear w_b_{nullptr}, w_p_{nullptr};
};

}  // namespace

Member sinkhorn_member() {
  Member member{
      .name = "sinkhorn",
      .title = "Sinkhorn Transformer",
      .paper = "Tay et al., Sparse Sinkhorn Attention, ICML 2020, arXiv 2002.11296",
      .about =
          "Blocks of b tokens are sorted softly: the sum of a block's tokens makes a row of scores, max(x̄ W_B, 0) "
          "W_P, a column for each block, and Sinkhorn's iteration brings exp(scores) to sums of 1 by rows and columns "
          "in turn: S. A query sees its own block and the sorted one in its place, K̃ = S K and Ṽ = S V over blocks, "
          "under one softmax. Without Gumbel noise. The paper's formula has a second ReLU around the scores: "
          "scores=relu. By default they may be negative, as the two-layer network of its authors' survey (arXiv "
          "2009.06732) leaves them; the ReLU holds about half of them, and their gradients, at zero. Long-Range "
          "Arena's einsum sums over both block axes, so that every sorted block is the sum of all, adds two softmaxes, "
          "takes the scores from sums of the keys and by default has a softmax in the place of the iteration.",
      .options = {{"block", "64", "tokens b of a block", 1, {}},
                  {"iterations", "5", "of Sinkhorn's normalisation", 1, {}},
                  {"scores", "linear", "whether a second ReLU bounds the scores below", 0, {"linear", "relu"}},
                  max_length_option()},
      .capabilities = {},
      .build = built<Sinkhorn>};
  member.capabilities.learned_per_position = true;
  member.capabilities.needs_max_length = true;
  member.capabilities.dropout = true;
  member.capabilities.growth = Growth::sub_quadratic;
  member.capabilities.complexity = "n·block + n²/block";
  return member;
}

}  // namespace dba::zoo

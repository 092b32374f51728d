#include <torch/torch.h>

#include <algorithm>

#include "nn/full_map.h"
#include "nn/transformed.h"
#include "zoo/block_attention.h"
#include "zoo/members.h"
#include "zoo/random_blocks.h"

namespace dba::zoo {
namespace {

/// The first and the last block of (B, H, blocks, size, w), where the host knows that all sequences have as many, and
/// two at least: a view.
at::Tensor both_ends(const at::Tensor& blocks) {
  return blocks.slice(2, 0, blocks.size(2), blocks.size(2) - 1);
}

/// `blocks` with both ends replaced by those of (B, H, 2, size, w).
struct WithEnds : torch::autograd::Function<WithEnds> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& blocks, const at::Tensor& ends) {
    return torch::cat({ends.narrow(2, 0, 1), blocks.slice(2, 1, -1), ends.narrow(2, 1, 1)}, 2);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    auto between = gradients[0].clone();
    both_ends(between).zero_();
    return {between, both_ends(gradients[0])};
  }
};

class BigBird : public ZooAttention {
 public:
  BigBird(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("bigbird", options_, values_) {
    register_projections();
    TORCH_CHECK(integer("window") % 2 == 1, "dba::zoo: option window of bigbird must be odd, got ", integer("window"));
  }

 private:
  at::Tensor mix(const Stream& stream, const Stream&) override {
    const auto blocks = Blocks::up_to(stream.sequences, integer("block"));
    const auto heads = options.heads(), count = blocks.count;
    // The second block has the fewest at hand: those of its window from the first on, and the last.
    if (count <= integer("window") / 2 + 3 + integer("random")) {
      const auto q = w_q->forward(stream.rows), k = w_k->forward(stream.rows), v = w_v->forward(stream.rows);
      return w_o->forward(full_map_attention(q, k, v, stream.sequences, heads, drop_rate()));
    }
    const auto taken = [&](torch::nn::Linear& layer) { return blocks.take(layer->forward(stream.rows), heads); };
    const auto q = taken(w_q), k = taken(w_k), v = taken(w_v);

    const auto key = blocks.key("bigbird", {heads, integer("window"), integer("random"), seed()});
    const auto plan = ops::kept_tensors(key, blocks.numbers(), [&] { return block_plan(blocks); });
    const auto &index = plan[0], &mask = plan[1], &ends = plan[2], &is_first = plan[3], &is_last = plan[4];
    const BlockList list(index, key);
    const auto mixed = attend_blocks(q, {{list.of(k), list.of(v), mask}}, drop_rate(), key);

    // The first and the last block see everything.
    const auto answered = [&](const at::Tensor& asking) {  // (B, H, 2, size, w)
      return attend_all(asking.flatten(2, 3), blocks, k, v, drop_rate()).unflatten(2, {2, blocks.size});
    };
    if (blocks.one_length() && !is_transformed(q)) {
      return w_o->forward(blocks.give(WithEnds::apply(mixed, answered(both_ends(q)))));
    }
    const auto end_rows = answered(q.gather(2, ends.expand({blocks.batch, heads, -1, blocks.size, q.size(4)})));
    const auto with_last = torch::where(is_last, end_rows.narrow(2, 1, 1), mixed);
    return w_o->forward(blocks.give(torch::where(is_first, end_rows.narrow(2, 0, 1), with_last)));
  }

  /// For every block of queries which blocks it sees, (1 or B, H, blocks, G), and which of their keys there are; the
  /// first and the last block, (1 or B, 1, 2, 1, 1), and which blocks are these, (1 or B, 1, blocks, 1, 1).
  std::vector<at::Tensor> block_plan(const Blocks& blocks) const {
    // Each block of keys once: the window first, then the global ones outside it, then the random ones.
    const auto heads = options.heads(), count = blocks.count;
    const auto beside = std::min(integer("window") / 2, count - 1);  // no window is wider than the sequence
    const auto own = torch::arange(count, blocks.numbers()).view({1, 1, -1, 1});
    const auto counts = blocks.once(blocks.counts());
    const auto number = counts.view({-1, 1, 1, 1});
    const auto spread = [&](const at::Tensor& index) { return index.expand({number.size(0), heads, count, -1}); };
    const auto window = own + torch::arange(-beside, beside + 1, own.options());
    const auto in_sequence = window.ge(0).logical_and(window.lt(number));
    const auto ends = torch::cat({torch::zeros_like(number), number - 1}, 3);
    const auto new_end = (ends - own).abs().gt(beside);
    const auto most = std::max<int64_t>(count - 2, 0);  // that a block can choose from
    const auto random = random_blocks(counts, heads, count, beside, std::min(integer("random"), most), seed());
    const auto index = torch::cat({spread(window), spread(ends), random}, 3).clamp(0, count - 1);
    const auto used = torch::cat({spread(in_sequence), spread(new_end), random.ge(0)}, 3);  // (B or 1, H, blocks, G)
    return {index, blocks.keys_of(index, used), ends.clamp_min(0).squeeze(2).unsqueeze(3).unsqueeze(4),
            own.eq(0).unsqueeze(4), own.eq(number - 1).unsqueeze(4)};
  }
};

}  // namespace

Member bigbird_member() {
  Member member{
      .name = "bigbird",
      .title = "BigBird",
      .paper = "Zaheer et al., Big Bird: Transformers for Longer Sequences, NeurIPS 2020, arXiv 2007.14062",
      .about =
          "Block-sparse softmax attention: a block of b queries sees a window of blocks around it, the first and the "
          "last block of the sequence, and r random blocks, drawn for each head and block from the seed; the first "
          "and the last block see everything. No pair counts twice, and a sequence of few blocks has softmax "
          "attention.",
      .options = {{"block", "64", "tokens b of a block", 1, {}},
                  {"window", "3", "blocks of the window, odd", 1, {}},
                  {"random", "3", "random blocks r", 0, {}},
                  seed_option()},
      .capabilities = {},
      .build = built<BigBird>};
  member.capabilities.deterministic = false;
  member.capabilities.dropout = true;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·block·(window + random + 2)";
  return member;
}

}  // namespace dba::zoo

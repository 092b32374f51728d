#include <torch/torch.h>

#include "zoo/block_attention.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

class Longformer : public ZooAttention {
 public:
  Longformer(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("longformer", options_, values_) {
    register_projections();
    if (integer("globals") > 0) {
      global_q_ = project("global_q", options.d(), options.d());
      global_k_ = project("global_k", options.d(), options.d());
      global_v_ = project("global_v", options.d(), options.d());
    }
  }

 private:
  at::Tensor mix(const Stream& stream, const Stream&) override {
    const auto globals = integer("globals");
    const auto blocks = Blocks::up_to(stream.sequences, integer("window") / 2);
    const auto half = blocks.size;  // a band as wide as the longest sequence hides as little as a wider one
    const auto heads = options.heads();
    const auto taken = [&](torch::nn::Linear& layer) { return blocks.take(layer->forward(stream.rows), heads); };
    const auto q = taken(w_q), k = taken(w_k), v = taken(w_v);
    const Band band(blocks);
    const auto near_k = band.beside(k), near_v = band.beside(v);
    std::vector<Seen> seen;
    for (size_t i = 0; i < band.masks.size(); ++i) {
      seen.push_back({near_k[i], near_v[i], band.masks[i]});
    }
    if (globals == 0) {
      return w_o->forward(blocks.give(attend_blocks(q, seen, drop_rate(), blocks.key("band"))));
    }
    const auto keys = first_tokens(k, globals).unsqueeze(2), values = first_tokens(v, globals).unsqueeze(2);
    const auto pattern = blocks.key("longformer", {keys.size(3)});
    const auto mask = ops::kept_tensor(pattern, blocks.numbers().dtype(at::kBool), [&] {
      const auto key = torch::arange(keys.size(3), blocks.numbers());
      const auto query = torch::arange(blocks.count * half, blocks.numbers()).view({blocks.count, half, 1});
      const auto outside_band = (query - key).abs().gt(half).unsqueeze(0);
      const auto exists = key.lt(blocks.once(blocks.lengths()).view({-1, 1, 1, 1}));
      return outside_band.logical_and(exists).unsqueeze(1);
    });
    seen.push_back({keys, values, mask});
    const auto mixed = attend_blocks(q, seen, drop_rate(), pattern);
    const auto first = first_tokens(blocks.take(stream.rows, 1), globals).squeeze(1);  // (B, g, d)
    const auto asking = by_heads(global_q_->forward(first), heads);
    const auto asked = attend_all(asking, blocks, taken(global_k_), taken(global_v_), drop_rate());
    return w_o->forward(blocks.give(with_first_tokens(mixed, asked)));
  }

  torch::nn::Linear global_q_{nullptr}, global_k_{nullptr}, global_v_{nullptr};
};

}  // namespace

Member longformer_member() {
  Member member{
      .name = "longformer",
      .title = "Longformer",
      .paper = "Beltagy et al., Longformer: The Long-Document Transformer, arXiv 2004.05150",
      .about =
          "Softmax attention of token i to the band |i − j| ≤ ⌊w/2⌋ and to the first g tokens, which are global: they "
          "attend to the whole sequence, with queries, keys and values of projections of their own. The band is "
          "computed in blocks of w/2 tokens with their two neighbours. Long-Range Arena masks a dense map and has "
          "no global tokens.",
      .options = {{"window", "512", "width w of the band", 2, {}},
                  {"globals", "1", "the first tokens that are global", 0, {}}},
      .capabilities = {},
      .build = built<Longformer>};
  member.capabilities.dropout = true;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·(window + globals)";
  return member;
}

}  // namespace dba::zoo

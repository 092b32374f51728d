#include <torch/torch.h>

#include <algorithm>

#include "zoo/block_attention.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

/// Entries that a mask of all pairs may have: it is written out, for each sequence where lengths differ.
constexpr int64_t kMostPairs = int64_t{1} << 20;

class SparseTransformer : public ZooAttention {
 public:
  SparseTransformer(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("sparse", options_, values_) {
    register_projections();
  }

 private:
  at::Tensor mix(const Stream& stream, const Stream&) override {
    const auto size = integer("block");
    const auto blocks = size == 0 ? Blocks::square(stream.sequences) : Blocks::up_to(stream.sequences, size);
    const auto heads = options.heads(), count = blocks.count;
    const bool one_size = size > 0 || blocks.one_length();
    // Tokens that see half of the others or more: sparing the rest costs more than it saves.
    const auto tokens = count * blocks.size, masks = blocks.one_length() ? int64_t{1} : blocks.batch;
    const bool sees_half = 2 * (blocks.size + count * std::min(integer("summary"), blocks.size)) >= tokens;
    if (sees_half && masks * tokens * tokens <= kMostPairs) {
      return w_o->forward(mix_on_a_map(stream, blocks, one_size));
    }
    const auto taken = [&](torch::nn::Linear& layer) { return blocks.take(layer->forward(stream.rows), heads); };
    const auto q = taken(w_q), k = taken(w_k), v = taken(w_v);

    // The last c places of each block, by the sequence's own block size: keys and which of them exist.
    const auto columns = std::min(integer("summary"), blocks.size);
    const auto place =
        one_size ? at::Tensor() : blocks.sizes().view({-1, 1, 1}) - columns + torch::arange(columns, blocks.numbers());
    const auto summary = [&](const at::Tensor& rows) {
      const auto index = [&] { return place.clamp_min(0).view({-1, 1, 1, columns, 1}); };
      const auto last = one_size ? rows.slice(3, blocks.size - columns)
                                 : rows.gather(3, index().expand({-1, heads, count, -1, rows.size(4)}));
      return last.flatten(2, 3).unsqueeze(2);
    };
    const auto key = blocks.key("sparse", {columns});
    const auto mask = ops::kept_tensor(key, blocks.numbers().dtype(at::kBool), [&] {
      const auto valid = blocks.once(blocks.valid());
      const auto exists = one_size ? valid.slice(2, blocks.size - columns)
                                   : valid.gather(2, place.clamp_min(0).expand({-1, count, -1}))
                                         .logical_and(place.ge(0));  // (B or 1, blocks, c)
      const auto block = torch::arange(count, blocks.numbers());
      const auto elsewhere = block.unsqueeze(1).ne(block.repeat_interleave(columns));  // (blocks, blocks·c)
      return exists.flatten(1).unsqueeze(1).logical_and(elsewhere).unsqueeze(1).unsqueeze(3);
    });

    const std::vector<Seen> seen{{k, v, key_mask(blocks.real())}, {summary(k), summary(v), mask}};
    return w_o->forward(blocks.give(attend_blocks(q, seen, drop_rate(), key)));
  }

  at::Tensor mix_on_a_map(const Stream& stream, const Blocks& blocks, bool one_size) {
    const auto whole = Blocks::whole(stream.sequences);
    const auto key = blocks.key("sparse_map", {integer("summary")});
    const auto seen = ops::kept_tensor(key, whole.numbers().dtype(at::kBool), [&] {
      const auto size = (one_size ? blocks.sizes().narrow(0, 0, 1) : blocks.sizes()).unsqueeze(1);  // (B or 1, 1)
      const auto token = torch::arange(whole.size, whole.numbers());
      const auto block = token.div(size, "floor");  // (B or 1, n)
      const auto is_summary = token.remainder(size).ge(size - integer("summary"));
      return block.unsqueeze(2).eq(block.unsqueeze(1)).logical_or(is_summary.unsqueeze(1));
    });
    return attend_on_a_map(whole, w_q->forward(stream.rows), w_k->forward(stream.rows), w_v->forward(stream.rows), seen,
                           options.heads(), drop_rate(), key);
  }
};

}  // namespace

Member sparse_member() {
  Member member{
      .name = "sparse",
      .title = "Sparse Transformer",
      .paper = "Child et al., Generating Long Sequences with Sparse Transformers, arXiv 1904.10509",
      .about =
          "The paper's fixed pattern in both directions: token i sees its own block of l tokens and the summary "
          "columns, the last c tokens of every block, j mod l ≥ l − c. With block 0, l is ⌈√n⌉ of each sequence's own "
          "n, and the cost grows like n·√n as the paper means it; a fixed l makes the summary columns grow with n. The "
          "paper is causal, and Long-Range Arena keeps that for encoding, on a masked dense map with column 0 and the "
          "row and column of <CLS> open besides; here tokens see both sides, and the map is dense for few tokens "
          "alone, where half of it or more counts.",
      .options = {{"block", "0", "tokens l of a block; 0: ⌈√n⌉", 0, {}},
                  {"summary", "8", "summary columns c of a block", 1, {}}},
      .capabilities = {},
      .build = built<SparseTransformer>};
  member.capabilities.dropout = true;
  member.capabilities.growth = Growth::sub_quadratic;
  member.capabilities.complexity = "n·√n·(1 + summary)";
  return member;
}

}  // namespace dba::zoo

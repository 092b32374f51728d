#include <torch/torch.h>

#include <algorithm>
#include <bit>

#include "zoo/block_attention.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

/// Tokens up to which one masked map is faster on a GPU than blocks.
constexpr int64_t kMostOnOneMap = 1024;

class Pixelfly : public ZooAttention {
 public:
  Pixelfly(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("pixelfly", options_, values_) {
    register_projections();
    const auto butterfly = integer("butterfly");
    TORCH_CHECK(std::has_single_bit(static_cast<uint64_t>(butterfly)),
                "dba::zoo: option butterfly of pixelfly must be a power of two, got ", butterfly);
  }

 private:
  at::Tensor mix(const Stream& stream, const Stream&) override {
    const auto blocks = Blocks::up_to(stream.sequences, integer("block"));
    const auto heads = options.heads(), count = blocks.count, rank = integer("rank");
    // So few blocks that a block sees half of them, as a rule: sparing the others costs more than it saves. On a GPU it
    // does up to a length, where all sequences share the map.
    const auto strides_there = std::bit_width(static_cast<uint64_t>(std::min(count, integer("butterfly")) - 1));
    const bool sees_half = count <= 2 * (1 + static_cast<int64_t>(strides_there));
    if (sees_half || (stream.rows.is_cuda() && blocks.one_length() && count * blocks.size <= kMostOnOneMap)) {
      return w_o->forward(mix_on_a_map(stream, blocks.size));
    }
    const auto taken = [&](torch::nn::Linear& layer) { return blocks.take(layer->forward(stream.rows), heads); };
    const auto q = taken(w_q), k = taken(w_k), v = taken(w_v);

    const auto globals = std::min(rank, count * blocks.size);
    const auto key = blocks.key("pixelfly", {integer("butterfly"), globals});
    const auto pattern = ops::kept_tensors(key, blocks.numbers(), [&] { return butterfly(blocks, globals); });
    const auto &index = pattern[0], &mask = pattern[1], &globals_mask = pattern[2];
    const BlockList list(index, key);
    std::vector<Seen> seen{{list.of(k), list.of(v), mask}};
    if (rank == 0) {
      return w_o->forward(blocks.give(attend_blocks(q, seen, drop_rate(), key)));
    }

    const auto keys = first_tokens(k, rank).unsqueeze(2), values = first_tokens(v, rank).unsqueeze(2);
    seen.push_back({keys, values, globals_mask});
    const auto mixed = attend_blocks(q, seen, drop_rate(), key);
    const auto asked = attend_all(first_tokens(q, rank), blocks, k, v, drop_rate());
    return w_o->forward(blocks.give(with_first_tokens(mixed, asked)));
  }

  /// Which blocks each block sees, (1, 1, blocks, G); which of their keys there are; and which of so many global keys
  /// there are and in none of these blocks, (B or 1, 1, blocks, 1, g).
  std::vector<at::Tensor> butterfly(const Blocks& blocks, int64_t globals) const {
    const auto own = torch::arange(blocks.count, blocks.numbers());
    const auto steps = torch::arange(std::bit_width(static_cast<uint64_t>(integer("butterfly"))), own.options());
    // 0, 1, 2, 4, … below the butterfly's size, made on the device: copied numbers would have to wait for it.
    const auto strides = torch::ones_like(steps).bitwise_left_shift(steps).bitwise_right_shift(1);
    const auto partner = own.unsqueeze(1).bitwise_xor(strides);  // (blocks, G)
    const auto there = partner.lt(blocks.count);
    const auto index = partner.clamp_max(blocks.count - 1).view({1, 1, blocks.count, -1});

    const auto key = torch::arange(globals, own.options());
    const auto elsewhere = partner.unsqueeze(2).eq(key.div(blocks.size, "floor")).any(1).logical_not().unsqueeze(1);
    const auto real = key.lt(blocks.once(blocks.lengths()).view({-1, 1, 1, 1}));
    return {index, blocks.keys_of(index, there.view(index.sizes())), elsewhere.logical_and(real).unsqueeze(1)};
  }

  at::Tensor mix_on_a_map(const Stream& stream, int64_t size) {
    const auto whole = Blocks::whole(stream.sequences);
    const auto key = whole.key("pixelfly_map", {size, integer("butterfly"), integer("rank")});
    const auto seen = ops::kept_tensor(key, whole.numbers().dtype(at::kBool), [&] {
      const auto token = torch::arange(whole.size, whole.numbers()), block = token.div(size, "floor");
      const auto step = block.unsqueeze(1).bitwise_xor(block);  // (n, n)
      const auto is_stride = step.bitwise_and(step - 1).eq(0).logical_and(step.lt(integer("butterfly")));
      const auto is_global = token.lt(integer("rank"));
      return step.eq(0).logical_or(is_stride).logical_or(is_global.unsqueeze(1)).logical_or(is_global).unsqueeze(0);
    });
    return attend_on_a_map(whole, w_q->forward(stream.rows), w_k->forward(stream.rows), w_v->forward(stream.rows), seen,
                           options.heads(), drop_rate(), key);
  }
};

}  // namespace

Member pixelfly_member() {
  Member member{
      .name = "pixelfly",
      .title = "Pixelfly",
      .paper = "Dao et al., Pixelated Butterfly, ICLR 2022, arXiv 2112.00029",
      .about =
          "Softmax attention on a flat block butterfly and a low-rank part: block I of b queries sees the blocks I and "
          "I xor 2ᵗ for 2ᵗ below the butterfly's size, the union of the butterfly's factors; and the first r tokens "
          "see everything and are seen by all, rows and columns that make up a matrix of rank 2r at most, the form "
          "in which the paper puts a low-rank part into an attention pattern. One softmax covers both. For few tokens, "
          "on a GPU up to 1,024 in sequences of one length, it is taken on a masked dense map.",
      .options = {{"block", "32", "tokens b of a block", 1, {}},
                  {"butterfly", "16", "blocks under one butterfly, a power of two", 1, {}},
                  {"rank", "32", "global tokens r", 0, {}}},
      .capabilities = {},
      .build = built<Pixelfly>};
  member.capabilities.dropout = true;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·(block·(1 + log₂ butterfly) + rank)";
  return member;
}

}  // namespace dba::zoo

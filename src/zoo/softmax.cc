#include <torch/torch.h>

#include "nn/full_map.h"
#include "zoo/block_attention.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

/// Parameters and self-attention as in dba::SoftmaxAttention, and cross-attention with them.
class Softmax : public ZooAttention {
 public:
  Softmax(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("softmax", options_, values_) {
    register_projections();
  }

 private:
  at::Tensor mix(const Stream& queries, const Stream& memory) override {
    const auto q = w_q->forward(queries.rows), k = w_k->forward(memory.rows), v = w_v->forward(memory.rows);
    const auto heads = options.heads();
    const auto dropout = is_training() ? options.dropout() : 0.0;
    if (&queries == &memory) {
      return w_o->forward(full_map_attention(q, k, v, queries.sequences, heads, dropout));
    }
    const auto asking = Blocks::whole(queries.sequences);
    const auto asked = Blocks::whole(memory.sequences);
    const auto values = asked.take_whole(v, heads);
    // A sequence without memory sees the zeros that stand for it.
    const auto mask = asked.valid().logical_or(asked.lengths().eq(0).view({-1, 1, 1})).unsqueeze(1);  // (B, 1, 1, m)
    const auto mixed = attend_keys(asking.take_whole(q, heads), asked.take_whole(k, heads), values, mask, dropout);
    return w_o->forward(asking.give_whole(mixed));
  }
};

}  // namespace

Member softmax_member() {
  Member member{
      .name = "softmax",
      .title = "softmax attention",
      .paper = "Vaswani et al., Attention Is All You Need, NeurIPS 2017, arXiv 1706.03762",
      .about =
          "y_i = Σ_j softmax over j(q_i·k_j/√d_h) v_j over all tokens of the sequence: the yardstick, on PyTorch's "
          "fused scaled_dot_product_attention, which stores no map; with dropout on a CPU, where that would, the map "
          "exists for some queries at a time and again for their gradients. For a padded batch in float16 on a GPU "
          "PyTorch may choose cuDNN, which hides keys by the lowest number of float16: padding shows in queries whose "
          "scores are all below −65504.",
      .options = {},
      .capabilities = {},
      .build = built<Softmax>};
  member.capabilities.exact = true;
  member.capabilities.cross_attention = true;
  member.capabilities.dropout = true;
  member.capabilities.growth = Growth::quadratic;
  member.capabilities.complexity = "n²";
  return member;
}

}  // namespace dba::zoo

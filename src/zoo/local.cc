#include <torch/torch.h>

#include "zoo/block_attention.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

class Local : public ZooAttention {
 public:
  Local(const DBAttentionOptions& options_, const OptionValues& values_) : ZooAttention("local", options_, values_) {
    register_projections();
  }

 private:
  at::Tensor mix(const Stream& stream, const Stream&) override {
    const auto blocks = Blocks::up_to(stream.sequences, integer("block"));
    const auto heads = options.heads();
    const auto q = blocks.take(w_q->forward(stream.rows), heads);
    const auto k = blocks.take(w_k->forward(stream.rows), heads);
    const auto v = blocks.take(w_v->forward(stream.rows), heads);
    const auto mixed = attend_blocks(q, {{k, v, key_mask(blocks.real())}}, drop_rate(), blocks.key("local"));
    return w_o->forward(blocks.give(mixed));
  }
};

}  // namespace

Member local_member() {
  Member member{
      .name = "local",
      .title = "local attention",
      .paper = "Tay et al., Long Range Arena, ICLR 2021, arXiv 2011.04006 (baseline)",
      .about =
          "The sequence is cut into blocks of b neighbouring tokens, the last one shorter, and softmax "
          "attention acts inside each: y_i = Σ_{j: ⌊j/b⌋ = ⌊i/b⌋} softmax over j(q_i·k_j/√d_h) v_j. "
          "Long-Range Arena's released code reshapes with the block index innermost, so that its tokens "
          "see every (n/b)-th token instead of their neighbours; its mask is reshaped otherwise than its tokens. Here "
          "blocks are contiguous.",
      .options = {{"block", "64", "tokens of a block", 1, {}}},
      .capabilities = {},
      .build = built<Local>};
  member.capabilities.dropout = true;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·block";
  return member;
}

}  // namespace dba::zoo

#include "zoo/members.h"

namespace dba::zoo {

Member dba_member() {
  Member member{
      .name = "dba",
      .title = "DBA",
      .paper =
          "Qin et al., DBA: Efficient Transformer with Dynamic Bilinear Low-Rank Attention, "
          "arXiv 2211.16368",
      .about =
          "P ≈ W_r' softmax over slots((W_r Q R)(W_c K R)ᵀ/√e) W_c'ᵀ with d_p slots: queries and keys are "
          "compressed in length and in width by matrices that depend on the tokens; docs/mathematics.md "
          "derives how it is computed. Cross-attention is a module of its own, dba::DBACrossAttention.",
      .options = {},
      .capabilities = {},
      .build = [](const DBAttentionOptions& options, const OptionValues&) { return DBAttention(options).ptr(); }};
  member.capabilities.dropout = true;
  member.capabilities.slots = true;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·d_p";
  return member;
}

}  // namespace dba::zoo

#include <torch/torch.h>

#include "zoo/blocks.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

/// x_i · y for every token: x (B, H, n, w), y (B, H, w) → (B, H, n, 1); 1 where there is no token.
at::Tensor flow(const at::Tensor& x, const at::Tensor& y, const at::Tensor& valid) {
  const auto sums = torch::matmul(x, y.unsqueeze(3));
  return valid.defined() ? sums.masked_fill(valid.logical_not().unsqueeze(1).unsqueeze(3), 1) : sums;
}

class Flowformer : public ZooAttention {
 public:
  Flowformer(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("flowformer", options_, values_) {
    register_projections();
  }

 private:
  at::Tensor mix(const Stream& queries, const Stream& memory) override {
    const auto asking = Blocks::whole(queries.sequences);
    const auto asked = Blocks::whole(memory.sequences);
    const auto heads = options.heads();
    const auto sinks = asking.real_whole(), sources = asked.real_whole();
    const auto q = real_features(asking.take_whole(w_q->forward(queries.rows), heads).sigmoid(), sinks);
    const auto k = real_features(asked.take_whole(w_k->forward(memory.rows), heads).sigmoid(), sources);
    const auto v = asked.take_whole(w_v->forward(memory.rows), heads);
    const auto n = asking.lengths.to(q.scalar_type()).view({-1, 1, 1, 1});
    const auto m = asked.lengths.to(q.scalar_type()).view({-1, 1, 1, 1});

    // A sequence without memory has no flow at all, and nothing to divide by.
    auto incoming = flow(q, k.sum(2), sinks);
    incoming = incoming.masked_fill(m.eq(0), 1);
    auto outgoing = flow(k, q.sum(2), sources);
    outgoing = outgoing.masked_fill(n.eq(0), 1);
    const auto conserved_in = flow(q, (k / outgoing).sum(2), sinks);
    const auto conserved_out = flow(k, (q / incoming).sum(2), sources);
    const auto rivals =
        sources.defined() ? masked_scores(conserved_out, sources.unsqueeze(1).unsqueeze(3)) : conserved_out;
    const auto competition = rivals.softmax(2) * m;
    const auto gathered = torch::matmul(k.transpose(2, 3), v * competition);  // (B, H, d_h, d_h)
    const auto mixed = torch::matmul(q / incoming, gathered) * (conserved_in * n / m.clamp_min(1)).sigmoid();
    return w_o->forward(asking.give_whole(mixed));
  }
};

}  // namespace

Member flowformer_member() {
  Member member{
      .name = "flowformer",
      .title = "Flowformer",
      .paper = "Wu et al., Flowformer: Linearizing Transformers with Conservation Flows, ICML 2022, arXiv 2202.06258",
      .about =
          "With q, k after a sigmoid, n queries and m keys: incoming I_i = q_i·Σ_j k_j and outgoing O_j = k_j·Σ_i q_i "
          "flow; conserved Î_i = q_i·Σ_j k_j/O_j and Ô_j = k_j·Σ_i q_i/I_i; y_i = sigmoid(Î_i n/m) (q_i/I_i) Σ_j "
          "k_jᵀ (m softmax over j(Ô_j)) v_j. The paper's equations; its code adds 10⁻⁶ to the sums and in one of two "
          "copies clips Ô to [−1, 1].",
      .options = {},
      .capabilities = {},
      .build = built<Flowformer>};
  member.capabilities.cross_attention = true;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·d_h";
  return member;
}

}  // namespace dba::zoo

#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "zoo/blocks.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

/// One over what flows through each token and head, (B, n, H); 1 where there is no token, or nothing on the other side.
/// Sigmoids of outliers come close to zero, so flows are held where the inverse has a finite square, which its gradient
/// contains.
at::Tensor inverse_flow(const at::Tensor& flow) {
  const double smallest = AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, flow.scalar_type(), "inverse_flow",
      [] { return std::sqrt(static_cast<double>(std::numeric_limits<scalar_t>::min())); });
  return flow.masked_fill(flow.eq(0), 1).clamp_min(smallest).reciprocal();
}

/// x (B, m, H) times the number of tokens of each sequence; by the host's number where all have one.
at::Tensor times_length(const at::Tensor& x, const Blocks& tokens) {
  return tokens.one_length() ? x * static_cast<double>(tokens.size)
                             : x * tokens.lengths().to(x.scalar_type()).view({-1, 1, 1});
}
/// x (B, n, H) times the number of queries for every key.
at::Tensor times_ratio(const at::Tensor& x, const Blocks& asking, const Blocks& asked) {
  if (asking.one_length() && asked.one_length()) {
    return asking.size == asked.size ? x : x * (static_cast<double>(asking.size) / static_cast<double>(asked.size));
  }
  const auto keys = asked.lengths().to(x.scalar_type()).clamp_min(1);
  return x * (asking.lengths().to(x.scalar_type()) / keys).view({-1, 1, 1});
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
    const auto asks = w_q->forward(queries.rows), offers = w_k->forward(memory.rows);
    Summing summing(asks.scalar_type());
    const auto q = asking.take_padded(summing.wide(asks).sigmoid());   // (B, n, d)
    const auto k = asked.take_padded(summing.wide(offers).sigmoid());  // (B, m, d)
    const auto per_incoming = inverse_flow(dot_by_heads(q, k.sum(1, /*keepdim=*/true), heads));
    const auto per_outgoing = inverse_flow(dot_by_heads(k, q.sum(1, /*keepdim=*/true), heads));
    const auto conserved_in = dot_by_heads(q, torch::matmul(per_outgoing.transpose(1, 2), k), heads);
    const auto conserved_out = dot_by_heads(k, torch::matmul(per_incoming.transpose(1, 2), q), heads);
    const auto sources = asked.real_whole();
    const auto rivals = masked_scores(conserved_out, sources.defined() ? sources.unsqueeze(2) : sources);
    const auto competition = times_length(rivals.softmax(1), asked).to(k.scalar_type());
    const auto allocation = times_ratio(conserved_in, asking, asked).sigmoid() * per_incoming;
    const auto mixed = attend_by_sums(scale_by_heads(q, allocation), scale_by_heads(k, competition),
                                      asked.take_padded(memory.rows), heads, w_v, w_o);
    return asking.give_padded(summing.narrow(mixed));
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
          "copies clips Ô to [−1, 1]; here flows too small for a finite gradient are held at the smallest that has "
          "one.",
      .options = {},
      .capabilities = {},
      .build = built<Flowformer>};
  member.capabilities.cross_attention = true;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·d_h";
  return member;
}

}  // namespace dba::zoo

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <utility>

#include "zoo/blocks.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

/// One over what flows through each token and head; 1 where there is no token, or nothing on the other side,
/// unless all are known to be there. Sigmoids of outliers come close to zero, so flows are held where the inverse has a
/// finite square, which its gradient contains.
at::Tensor inverse_flow(const at::Tensor& flow, bool all_there) {
  const double smallest = AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, flow.scalar_type(), "inverse_flow",
      [] { return std::sqrt(static_cast<double>(std::numeric_limits<scalar_t>::min())); });
  return (all_there ? flow : flow.masked_fill(flow.eq(0), 1)).clamp_min(smallest).reciprocal();
}

/// Features with heads side by side, x (B, n, H·w), and what every token and head has, (B, n, H).
struct HeadsTogether {
  int64_t heads;

  at::Tensor dot(const at::Tensor& x, const at::Tensor& sums) const {
    return dot_by_heads(x, sums, heads);
  }
  /// Σ_i weight_i x_i by heads, as `dot` takes it.
  static at::Tensor weighed(const at::Tensor& weight, const at::Tensor& x) {
    return torch::matmul(weight.transpose(1, 2), x);
  }
  static at::Tensor scaled(const at::Tensor& x, const at::Tensor& weight) {
    return scale_by_heads(x, weight);
  }
  /// What each place of a sequence has, (B, n or 1), for all heads.
  static at::Tensor for_heads(const at::Tensor& x) {
    return x.unsqueeze(2);
  }
};

/// The same with heads apart, (B·H, n, w) and (B·H, n, 1): fewer operations, and a copy.
struct HeadsApart {
  int64_t heads;

  static at::Tensor dot(const at::Tensor& x, const at::Tensor& sums) {
    return torch::bmm(x, sums.transpose(1, 2));
  }
  static at::Tensor weighed(const at::Tensor& weight, const at::Tensor& x) {
    return torch::bmm(weight.transpose(1, 2), x);
  }
  static at::Tensor scaled(const at::Tensor& x, const at::Tensor& weight) {
    return x * weight;
  }
  at::Tensor for_heads(const at::Tensor& x) const {
    return x.repeat_interleave(heads, 0).unsqueeze(2);
  }
};

/// x times the number of tokens of each sequence; by the host's number where all have one.
template <class Heads>
at::Tensor times_length(const Heads& heads, const at::Tensor& x, const Blocks& tokens) {
  return tokens.one_length() ? x * static_cast<double>(tokens.size)
                             : x * heads.for_heads(tokens.lengths().to(x.scalar_type()).unsqueeze(1));
}
/// x times the number of queries for every key.
template <class Heads>
at::Tensor times_ratio(const Heads& heads, const at::Tensor& x, const Blocks& asking, const Blocks& asked) {
  if (asking.one_length() && asked.one_length()) {
    return asking.size == asked.size ? x : x * (static_cast<double>(asking.size) / static_cast<double>(asked.size));
  }
  const auto keys = asked.lengths().to(x.scalar_type()).clamp_min(1);
  return x * heads.for_heads((asking.lengths().to(x.scalar_type()) / keys).unsqueeze(1));
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
    const bool few = are_few({asking.batch, asking.size, options.d()}, queries.rows.device());
    const auto asks = w_q->forward(queries.rows), offers = w_k->forward(memory.rows);
    const auto values = few ? w_v->forward(memory.rows) : at::Tensor();
    Summing summing(asks.scalar_type());
    const auto q = asking.take_padded(summing.wide(asks).sigmoid());   // (B, n, d)
    const auto k = asked.take_padded(summing.wide(offers).sigmoid());  // (B, m, d)
    if (few) {
      const auto v = heads_apart(asked.take_padded(summing.wide(values)), heads);
      const auto [f_q, f_k] =
          with_flows(HeadsApart{heads}, heads_apart(q, heads), heads_apart(k, heads), asking, asked);
      const auto mixed = heads_joined(torch::bmm(f_q, torch::bmm(f_k.transpose(1, 2), v)), heads);
      return w_o->forward(asking.give_padded(summing.narrow(mixed)));
    }
    const auto [f_q, f_k] = with_flows(HeadsTogether{heads}, q, k, asking, asked);
    const auto mixed = attend_by_sums(f_q, f_k, asked.take_padded(memory.rows), heads, w_v, w_o);
    return asking.give_padded(summing.narrow(mixed));
  }

  /// Queries times what is allocated to them, q/I sigmoid(Î), and keys times what they win, k softmax(Ô) m.
  template <class Heads>
  static std::pair<at::Tensor, at::Tensor> with_flows(const Heads& heads, const at::Tensor& q, const at::Tensor& k,
                                                      const Blocks& asking, const Blocks& asked) {
    const bool all_there = asking.one_length() && asked.one_length();
    const auto per_incoming = inverse_flow(heads.dot(q, k.sum(1, /*keepdim=*/true)), all_there);
    const auto per_outgoing = inverse_flow(heads.dot(k, q.sum(1, /*keepdim=*/true)), all_there);
    const auto conserved_in = heads.dot(q, heads.weighed(per_outgoing, k));
    const auto conserved_out = heads.dot(k, heads.weighed(per_incoming, q));
    const auto sources = asked.real_whole();
    const auto rivals = masked_scores(conserved_out, sources.defined() ? heads.for_heads(sources) : sources);
    const auto competition = times_length(heads, rivals.softmax(1), asked).to(k.scalar_type());
    const auto allocation = times_ratio(heads, conserved_in, asking, asked).sigmoid() * per_incoming;
    return {heads.scaled(q, allocation), heads.scaled(k, competition)};
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

#include <torch/torch.h>

#include "zoo/blocks.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

constexpr double kAdded = 1e-6;

class LinearTransformer : public ZooAttention {
 public:
  LinearTransformer(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("linear", options_, values_) {
    register_projections();
  }

 private:
  at::Tensor mix(const Stream& queries, const Stream& memory) override {
    const auto asking = Blocks::whole(queries.sequences);
    const auto asked = Blocks::whole(memory.sequences);
    const auto heads = options.heads();
    const auto q = w_q->forward(queries.rows), k = w_k->forward(memory.rows);
    Summing summing(q.scalar_type());
    const auto f_q = asking.take_padded(torch::elu(summing.wide(q)) + 1);
    const auto f_k = asked.take_padded(torch::elu(summing.wide(k)) + 1);
    const auto total = dot_by_heads(f_q, f_k.sum(1, /*keepdim=*/true), heads) + kAdded;
    const auto shares = (f_q.unflatten(2, {heads, -1}) / total.unsqueeze(3)).flatten(2);
    const auto mixed = attend_by_sums(shares, f_k, asked.take_padded(memory.rows), heads, w_v, w_o);
    return asking.give_padded(summing.narrow(mixed));
  }
};

}  // namespace

Member linear_member() {
  Member member{.name = "linear",
                .title = "Linear Transformer",
                .paper = "Katharopoulos et al., Transformers are RNNs, ICML 2020, arXiv 2006.16236",
                .about =
                    "The softmax's kernel is replaced by φ(q)·φ(k) with φ(x) = elu(x) + 1, so that the sums over "
                    "keys come first: y_i = φ(q_i) (Σ_j φ(k_j)ᵀ v_j) / (φ(q_i)·Σ_j φ(k_j) + 10⁻⁶). Long-Range "
                    "Arena's code lets padding into both sums; here only real tokens count.",
                .options = {},
                .capabilities = {},
                .build = built<LinearTransformer>};
  member.capabilities.cross_attention = true;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·d_h";
  return member;
}

}  // namespace dba::zoo

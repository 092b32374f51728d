#include <torch/torch.h>

#include "zoo/blocks.h"
#include "zoo/elu_plus_one.h"
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
  /// For few queries, with heads apart in memory, since each is read twice: f_q, f_k, values (B, n, H·w), zeros for
  /// keys that do not exist.
  static at::Tensor mixed_by_heads(const at::Tensor& f_q, const at::Tensor& f_k, const at::Tensor& values,
                                   int64_t heads) {
    const auto q = heads_apart(f_q, heads), k = heads_apart(f_k, heads), v = heads_apart(values, heads);
    const auto total = torch::bmm(q, k.sum(1).unsqueeze(2)) + kAdded;
    return heads_joined(torch::bmm(q, torch::bmm(k.transpose(1, 2), v)) / total, heads);
  }

  at::Tensor mix(const Stream& queries, const Stream& memory) override {
    const auto asking = Blocks::whole(queries.sequences);
    const auto asked = Blocks::whole(memory.sequences);
    const auto heads = options.heads();
    const bool few = are_few({asking.batch, asking.size, options.d()}, queries.rows.device());
    const auto q = w_q->forward(queries.rows), k = w_k->forward(memory.rows);
    const auto v = few ? w_v->forward(memory.rows) : at::Tensor();
    Summing summing(q.scalar_type());
    const auto f_q = asking.take_padded(elu_plus_one(summing.wide(q)));
    const auto f_k = asked.take_padded(elu_plus_one(summing.wide(k)));
    if (few) {
      const auto mixed = mixed_by_heads(f_q, f_k, asked.take_padded(summing.wide(v)), heads);
      return w_o->forward(asking.give_padded(summing.narrow(mixed)));
    }
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

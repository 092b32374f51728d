#include <torch/torch.h>

#include "nn/transformed.h"
#include "zoo/blocks.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

constexpr double kAdded = 1e-6;

/// elu(x) + 1 as exp(min(x, 0)) + max(x, 0): the sum would cancel what is left of exp(x) for very negative x. Its
/// derivative is exp(min(x, 0)) too, the smaller of the feature and 1.
struct EluPlusOne : torch::autograd::Function<EluPlusOne> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const auto feature = x.clamp_max(0).exp_().add_(x.clamp_min(0));
    context->save_for_backward({feature});
    return feature;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * context->get_saved_variables()[0].clamp_max(1)};
  }
};

/// For transforms of functions by PyTorch's own operations, which take three times as long.
at::Tensor feature(const at::Tensor& x) {
  return is_transformed(x) ? x.clamp_max(0).exp() + x.relu() : EluPlusOne::apply(x);
}

class LinearTransformer : public ZooAttention {
 public:
  LinearTransformer(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("linear", options_, values_) {
    register_projections();
  }

 private:
  /// For few queries, with heads apart in memory, since each is read twice: f_q, f_k (B, n, H·w), zeros for keys that
  /// do not exist, values (B, H, m, w) → (B, H, n, w).
  static at::Tensor mixed_by_heads(const at::Tensor& f_q, const at::Tensor& f_k, const at::Tensor& values) {
    const auto heads = values.size(1);
    const auto q = by_heads(f_q, heads).contiguous(), k = by_heads(f_k, heads).contiguous();
    const auto total = torch::matmul(q, k.sum(2).unsqueeze(3)) + kAdded;
    return torch::matmul(q, torch::matmul(k.transpose(2, 3), values)) / total;
  }

  at::Tensor mix(const Stream& queries, const Stream& memory) override {
    const auto asking = Blocks::whole(queries.sequences);
    const auto asked = Blocks::whole(memory.sequences);
    const auto heads = options.heads();
    const bool few = are_few(asking.size, options.d());
    const auto q = w_q->forward(queries.rows), k = w_k->forward(memory.rows);
    const auto v = few ? w_v->forward(memory.rows) : at::Tensor();
    Summing summing(q.scalar_type());
    const auto f_q = asking.take_padded(feature(summing.wide(q)));
    const auto f_k = asked.take_padded(feature(summing.wide(k)));
    if (few) {
      const auto values = asked.take_whole(summing.wide(v), heads);
      return w_o->forward(asking.give_whole(summing.narrow(mixed_by_heads(f_q, f_k, values))));
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

#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "zoo/blocks.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

constexpr double kSoftmaxEps = 1e-4;
constexpr double kReluEps = 1e-3;

class Performer : public ZooAttention {
 public:
  Performer(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("performer", options_, values_) {
    register_projections();
    hold_buffer(features_, "features", orthogonal_features(integer("features"), head_width(), seed()));
  }

 private:
  /// What the features are but for the number that all have in common, times √m: of x (B, H, n, d_h), valid (B, n) or
  /// undefined, zero for keys that do not exist. The largest exponent is taken out: from queries in each row, from keys
  /// over the sequence and head; numerator and denominator lose the same factors.
  at::Tensor features(const at::Tensor& x, const at::Tensor& valid, bool keys) const {
    const auto scaled = x * std::pow(static_cast<double>(head_width()), -0.25);
    auto projected = torch::matmul(scaled, features_.t().to(x.scalar_type()));
    if (choice("kernel") == "relu") {
      return projected.relu_();
    }
    const auto exists = valid.defined() ? valid.unsqueeze(1).unsqueeze(3) : valid;
    const auto highest = keys ? masked_scores(projected, exists).amax({2, 3}, true) : projected.amax({3}, true);
    // exp(w·x' − |x'|²/2 − c), with all that belongs to a row in one subtraction.
    auto off = at::add(highest.detach(), (scaled * scaled).sum(3, /*keepdim=*/true), 0.5);
    if (keys && exists.defined()) {
      off = off.masked_fill(exists.logical_not(), std::numeric_limits<double>::infinity());
    }
    return (projected - off).exp_();
  }

  at::Tensor mix(const Stream& queries, const Stream& memory) override {
    const auto asking = Blocks::whole(queries.sequences);
    const auto asked = Blocks::whole(memory.sequences);
    const auto heads = options.heads();
    const auto q = w_q->forward(queries.rows), k = w_k->forward(memory.rows), values = w_v->forward(memory.rows);
    Summing summing(q.scalar_type());
    const auto f_q = features(asking.take_whole(summing.wide(q), heads), asking.real_whole(), false);
    const auto f_k = features(asked.take_whole(summing.wide(k), heads), asked.real_whole(), true);
    const auto v = asked.take_whole(summing.wide(values), heads);
    const auto eps = choice("kernel") == "relu" ? kReluEps : kSoftmaxEps;
    const auto mixed = kernel_attention(f_q, f_k, v, asked.real_whole(), eps);
    return w_o->forward(asking.give_whole(summing.narrow(mixed)));
  }

  at::Tensor features_;  // (m, d_h), shared by the heads
};

}  // namespace

Member performer_member() {
  Member member{
      .name = "performer",
      .title = "Performer",
      .paper = "Choromanski et al., Rethinking Attention with Performers, ICLR 2021, arXiv 2009.14794",
      .about =
          "FAVOR+: y_i = φ(q_i) (Σ_j φ(k_j)ᵀ v_j) / (φ(q_i)·Σ_j φ(k_j)) with m random directions w, orthogonal in "
          "groups of d_h and as long as Gaussian vectors. Kernel softmax: φ(x) = (exp(w·x' − |x'|²/2 − c) + 10⁻⁴)/√m "
          "with x' = x/d_h^¼, an unbiased estimate of exp(q·k/√d_h) but for the 10⁻⁴; c is the largest w·x' of a "
          "query, or of all keys of a sequence, and counts as a constant in gradients, as in the authors' code. Kernel "
          "relu: φ(x) = max(w·x', 0) + 10⁻³. The directions are drawn "
          "once from the seed and kept with the weights. Long-Range Arena's default is a ReLU without random "
          "directions, which is not a Performer.",
      .options = {{"features", "256", "random directions m", 1, {}},
                  {"kernel", "softmax", "the kernel", 0, {"softmax", "relu"}},
                  seed_option()},
      .capabilities = {},
      .build = built<Performer>};
  member.capabilities.deterministic = false;
  member.capabilities.cross_attention = true;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·features";
  return member;
}

}  // namespace dba::zoo

#include <torch/torch.h>

#include <numbers>

#include "zoo/blocks.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

constexpr double kLeastWeight = 1e-6;

/// relu(x) [sin(π i/2m), cos(π i/2m)] for the tokens i = 1 … n: (B, H, n, 2·d_h). m (B).
at::Tensor reweighted(const at::Tensor& x, const at::Tensor& m, const at::Tensor& valid) {
  const auto place = torch::arange(1, x.size(2) + 1, m.options());
  const auto angle =
      (place.to(at::kDouble) / m.unsqueeze(1) * (std::numbers::pi / 2)).to(x.scalar_type()).view({-1, 1, x.size(2), 1});
  const auto active = real_features(x.relu(), valid);
  return torch::cat({active * angle.sin(), active * angle.cos()}, 3);
}

class CosFormer : public ZooAttention {
 public:
  CosFormer(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("cosformer", options_, values_) {
    register_projections();
  }

 private:
  at::Tensor mix(const Stream& queries, const Stream& memory) override {
    const auto asking = Blocks::whole(queries.sequences);
    const auto asked = Blocks::whole(memory.sequences);
    const auto heads = options.heads();
    const auto m = torch::maximum(asking.lengths, asked.lengths).clamp_min(1);
    const auto f_q = reweighted(asking.take_whole(w_q->forward(queries.rows), heads), m, asking.real_whole());
    const auto f_k = reweighted(asked.take_whole(w_k->forward(memory.rows), heads), m, asked.real_whole());
    const auto v = asked.take_whole(w_v->forward(memory.rows), heads);
    return w_o->forward(asking.give_whole(kernel_attention(f_q, f_k, v, Denominator::clamp, kLeastWeight)));
  }
};

}  // namespace

Member cosformer_member() {
  Member member{
      .name = "cosformer",
      .title = "cosFormer",
      .paper = "Qin et al., cosFormer: Rethinking Softmax in Attention, ICLR 2022, arXiv 2202.08791",
      .about =
          "Weights max(q_i, 0)·max(k_j, 0) cos(π/2 · (i − j)/m), normalised over j, the denominator at least 10⁻⁶; "
          "cos(a − b) = cos a cos b + sin a sin b makes it linear attention on features twice as wide. m is the "
          "sequence's own length (of the longer stream in cross-attention); the released code takes the padded "
          "length of the batch, and padding then changes the weights.",
      .options = {},
      .capabilities = {},
      .build = built<CosFormer>};
  member.capabilities.cross_attention = true;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·d_h";
  return member;
}

}  // namespace dba::zoo

#include <torch/torch.h>

#include <algorithm>
#include <numbers>

#include "nn/transient_map.h"
#include "zoo/blocks.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

using at::Tensor;

constexpr double kLeastWeight = 1e-6;

/// The m of cos(π(i − j)/2m): the longer of two streams, by the host's number where all sequences are alike.
struct Span {
  Span(const Blocks& asking, const Blocks& asked) : options(asking.numbers().dtype(at::kDouble)) {
    if (asking.one_length() && asked.one_length()) {
      longest = std::max(asking.size, asked.size);
    } else {
      lengths = torch::maximum(asking.lengths(), asked.lengths()).clamp_min(1).unsqueeze(1);
    }
  }
  at::TensorOptions options;
  int64_t longest = 0;
  Tensor lengths;  // (B, 1) of each sequence, where they are not alike
};

/// sin(π i/2m) and cos(π i/2m) of the tokens i = 1 … n: (B or 1, 1, n, 2).
Tensor waves(int64_t n, const Span& m, at::ScalarType type) {
  const auto key = m.lengths.defined() ? std::nullopt : std::optional(ops::KeptKey{"waves", {n, m.longest}});
  return ops::kept_tensor(key, m.options.dtype(type), [&] {
    const auto place = torch::arange(1, n + 1, m.options).unsqueeze(0).mul_(std::numbers::pi / 2);
    const auto angle = (m.lengths.defined() ? place / m.lengths : place / static_cast<double>(m.longest)).to(type);
    return torch::stack({angle.sin(), angle.cos()}, 2).unsqueeze(1);
  });
}

/// [x sine, x cosine]: x (B, H, n, w), waves (B or 1, 1, n, 1) → (B, H, n, 2·w), each half written where it stays.
struct Waved : torch::autograd::Function<Waved> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& sine,
                        const Tensor& cosine) {
    context->save_for_backward({sine, cosine});
    const auto both = torch::empty({x.size(0), x.size(1), x.size(2), 2 * x.size(3)}, x.options());
    auto halves = both.chunk(2, 3);
    at::mul_out(halves[0], x, sine);
    at::mul_out(halves[1], x, cosine);
    return both;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto halves = gradients[0].chunk(2, 3);
    return {(halves[0] * saved[0]).addcmul_(halves[1], saved[1]), {}, {}};
  }
};

/// (first sine + second cosine)/weight of the halves of `both` (B, H, n, 2·w), waves (B or 1, 1, n, 1), weight (B, H,
/// n, 1) → (B, H, n, w), in memory as (B, n, H, w), where the next layer wants it.
struct Unwaved : torch::autograd::Function<Unwaved> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& both, const Tensor& sine,
                        const Tensor& cosine, const Tensor& weight) {
    const auto halves = both.chunk(2, 3);
    auto y = torch::empty({both.size(0), both.size(2), both.size(1), both.size(3) / 2}, both.options()).transpose(1, 2);
    at::mul_out(y, halves[0], sine);
    y.addcmul_(halves[1], cosine).div_(weight);
    context->save_for_backward({sine, cosine, weight, y});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    check_first_derivative("cosformer");
    const auto saved = context->get_saved_variables();
    const auto &sine = saved[0], &cosine = saved[1], &weight = saved[2], &y = saved[3];
    const auto dy = gradients[0] / weight;
    const auto both = torch::empty({y.size(0), y.size(1), y.size(2), 2 * y.size(3)}, y.options());
    auto halves = both.chunk(2, 3);
    at::mul_out(halves[0], dy, sine);
    at::mul_out(halves[1], dy, cosine);
    return {both, {}, {}, -(dy * y).sum(3, /*keepdim=*/true)};
  }
};

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
    const Span m(asking, asked);
    const auto asks = w_q->forward(queries.rows).relu_(), offers = w_k->forward(memory.rows).relu_();
    const auto values = w_v->forward(memory.rows);
    Summing summing(asks.scalar_type());
    const auto q = asking.take_padded(summing.wide(asks));  // (B, n, d)
    const auto k = asked.take_padded(summing.wide(offers));
    const auto v = heads_apart(asked.take_padded(summing.wide(values)), heads);  // (B·H, m, d_h)

    // cos(a − b) = sin a sin b + cos a cos b: keys meet both waves before the sums, queries after them.
    const auto at_q = waves(asking.size, m, q.scalar_type());
    const auto at_k = asked.size == asking.size ? at_q : waves(asked.size, m, k.scalar_type());
    const auto f_k = Waved::apply(by_heads(k, heads), at_k.narrow(3, 0, 1), at_k.narrow(3, 1, 1)).flatten(0, 1);
    const auto q_h = heads_apart(q, heads), key_sums = f_k.sum(1).view({-1, 2, head_width()});
    const auto back = [&](const Tensor& x) { return x.unflatten(0, {-1, heads}); };
    const auto total = (back(torch::bmm(q_h, key_sums.transpose(1, 2))) * at_q).sum({3}, /*keepdim=*/true);
    const auto sums = torch::bmm(f_k.transpose(1, 2), v);                       // (B·H, 2·d_h, d_h)
    const auto mixed = back(torch::bmm(q_h, torch::cat(sums.chunk(2, 1), 2)));  // (B, H, n, 2·d_h)
    const auto y = Unwaved::apply(mixed, at_q.narrow(3, 0, 1), at_q.narrow(3, 1, 1), total.clamp_min(kLeastWeight));
    return w_o->forward(asking.give_whole(summing.narrow(y)));
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

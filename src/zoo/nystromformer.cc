#include <torch/torch.h>

#include <cmath>

#include "nn/wide_product.h"
#include "zoo/block_attention.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

using at::Tensor;

/// (B, L, n): the means over the segments that each sequence is cut into, min(L, length) of them, as even as can be:
/// segment s begins at ⌊s·length/segments⌋.
at::Tensor segment_means(const at::Tensor& lengths, int64_t landmarks, int64_t n, at::ScalarType type) {
  const auto segments = lengths.clamp_max(landmarks).view({-1, 1, 1});
  const auto length = lengths.view({-1, 1, 1});
  const auto token = torch::arange(n, lengths.options()).view({1, 1, -1});
  const auto segment = ((token + 1) * segments - 1).div(length.clamp_min(1), "floor");
  const auto landmark = torch::arange(landmarks, lengths.options()).view({1, -1, 1});
  const auto belongs = segment.eq(landmark).logical_and(token.lt(length)).to(type);
  return belongs / belongs.sum(2, /*keepdim=*/true).clamp_min(1);
}

/// Means (B, H, L, w) of the segments of x (B, H, n, w), and which of them there are (B, L), undefined where all are.
struct Landmarks {
  Landmarks(const at::Tensor& x, const Blocks& blocks, int64_t most) {
    const auto count = std::min(most, blocks.size);
    if (blocks.real_whole().defined()) {
      const auto means = segment_means(blocks.lengths(), count, blocks.size, x.scalar_type());
      rows = torch::matmul(means.unsqueeze(1), x);
      real = means.sum(2).gt(0);
    } else if (blocks.size % count == 0) {
      rows = x.unflatten(2, {count, -1}).mean(3);
    } else {
      const auto means = segment_means(blocks.lengths().narrow(0, 0, 1), count, blocks.size, x.scalar_type());
      rows = torch::matmul(means.unsqueeze(1), x);
    }
  }
  at::Tensor rows, real;
};

/// The paper's iteration, Z ← Z (13 I − A Z (15 I − A Z (7 I − A Z)))/4, some times from the first Z; a (B, L, M), z
/// (B, M, L). Of each step Z and A Z are kept; what else lies between is computed again for the gradients.
struct InverseSteps : torch::autograd::Function<InverseSteps> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& a, const Tensor& z, int64_t steps) {
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    const Identities identities(a);
    std::vector<Tensor> kept{a};
    auto last = z;
    for (int64_t i = 0; i < steps; ++i) {
      const Step step(torch::bmm(a, last), identities);
      kept.insert(kept.end(), {last, step.az});
      last = torch::bmm(last, step.factor);
    }
    context->save_for_backward(kept);
    return last;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    check_first_derivative("nystromformer");
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    const auto kept = context->get_saved_variables();
    const auto& a = kept.front();
    const Identities identities(a);
    auto da = torch::zeros_like(a);
    auto dz = gradients[0];
    for (auto end = kept.size(); end > 1; end -= 2) {
      const auto& z = kept[end - 2];
      const Step step(kept[end - 1], identities);
      const auto turned = step.az.transpose(1, 2);
      const auto d_factor = torch::bmm(z.transpose(1, 2), dz);
      const auto d_inner = torch::bmm(turned, d_factor) * -0.25;
      auto d_az = torch::bmm(d_factor, step.inner.transpose(1, 2)) * -0.25;
      d_az = torch::baddbmm(d_az, d_inner, step.innermost.transpose(1, 2), /*beta=*/1, /*alpha=*/-1);
      d_az = torch::baddbmm(d_az, turned, d_inner);
      da.baddbmm_(d_az, z.transpose(1, 2));
      dz = torch::baddbmm(torch::bmm(dz, step.factor.transpose(1, 2)), a.transpose(1, 2), d_az);
    }
    return {da, dz, {}};
  }

 private:
  /// Those of all steps.
  struct Identities {
    explicit Identities(const Tensor& a) {
      const auto all = ops::kept_tensors(ops::KeptKey{"nystromformer", {a.size(1)}}, a.options(), [&] {
        const auto one = torch::eye(a.size(1), a.options());
        return std::vector{7 * one, 15 * one, 13.0 / 4 * one};
      });
      seven = all[0], fifteen = all[1], thirteen_quarters = all[2];
    }
    Tensor seven, fifteen, thirteen_quarters;
  };
  struct Step {
    Step(const Tensor& az_, const Identities& identities) : az(az_) {
      innermost = identities.seven - az;
      inner = torch::baddbmm(identities.fifteen, az, innermost, /*beta=*/1, /*alpha=*/-1);
      factor = torch::baddbmm(identities.thirteen_quarters, az, inner, /*beta=*/1, /*alpha=*/-0.25);
    }
    Tensor az, innermost, inner, factor;
  };
};

/// An approximate pseudo-inverse. Rows and columns of zeros stay zeros. a (B, L, M).
at::Tensor approximate_inverse(const at::Tensor& a, int64_t iterations) {
  const auto scale = a.abs().sum(-2).amax({-1}) * a.abs().sum(-1).amax({-1});
  const auto first = a.transpose(-2, -1) / scale.masked_fill(scale.eq(0), 1).unsqueeze(-1).unsqueeze(-1);
  return InverseSteps::apply(a, first.to(a.scalar_type()), iterations);
}

class Nystromformer : public ZooAttention {
 public:
  Nystromformer(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("nystromformer", options_, values_) {
    register_projections();
    if (const auto width = integer("conv"); width > 0) {
      TORCH_CHECK(width % 2 == 1, "dba::zoo: option conv of nystromformer must be odd or 0, got ", width);
      hold_parameter(conv_, "conv", torch::empty({options.heads(), 1, width, 1}));
    }
  }

 private:
  void draw_parameters() override {
    if (conv_.defined()) {
      torch::nn::init::kaiming_uniform_(conv_, std::sqrt(5.0));
    }
  }

  at::Tensor mix(const Stream& queries, const Stream& memory) override {
    const auto asking = Blocks::whole(queries.sequences);
    const auto asked = Blocks::whole(memory.sequences);
    const auto heads = options.heads();
    const auto scale = 1.0 / std::sqrt(static_cast<double>(head_width()));
    // Each is read twice or more: once by heads in memory is enough.
    const auto q = asking.take_whole(w_q->forward(queries.rows), heads).contiguous();
    const auto k = asked.take_whole(w_k->forward(memory.rows), heads).contiguous();
    const auto v = asked.take_whole(w_v->forward(memory.rows), heads).contiguous();

    const Landmarks own(q, asking, integer("landmarks")), others(k, asked, integer("landmarks"));
    const auto seen = others.real.defined() ? others.real.unsqueeze(1).unsqueeze(2) : Tensor();  // (B, 1, 1, L)
    auto between = masked_scores(wide_matmul(own.rows, others.rows.transpose(2, 3)) * scale, seen).softmax(3);
    if (seen.defined()) {
      between = between.masked_fill(seen.logical_not(), 0);
    }
    if (own.real.defined()) {
      between = between.masked_fill(own.real.logical_not().unsqueeze(1).unsqueeze(3), 0);
    }
    const auto keys = others.real.defined() ? asked.valid().unsqueeze(1) : Tensor();  // (B, 1, 1, m)
    const auto inverse =
        approximate_inverse(between.flatten(0, 1).to(product_type(q.scalar_type())), integer("iterations"))
            .unflatten(0, {-1, heads});
    // Not in float16, where the inverse may be infinite.
    const auto of_marks = matmul_in(inverse.scalar_type(), inverse, attend_keys(own.rows, k, v, keys, drop_rate()));
    auto mixed = attend_keys(q, others.rows, of_marks, seen, drop_rate());
    if (conv_.defined() && &queries == &memory) {
      mixed = mixed + torch::conv2d(v, conv_, {}, /*stride=*/1, {conv_.size(2) / 2, 0}, /*dilation=*/1, heads);
    }
    return w_o->forward(asking.give_whole(mixed));
  }

  at::Tensor conv_;  // (H, 1, width, 1)
};

}  // namespace

Member nystromformer_member() {
  Member member{
      .name = "nystromformer",
      .title = "Nyströmformer",
      .paper = "Xiong et al., Nyströmformer, AAAI 2021, arXiv 2102.03902",
      .about =
          "Y = softmax(Q K̃ᵀ) softmax(Q̃ K̃ᵀ)⁺ softmax(Q̃ Kᵀ) V + conv(V), scores over √d_h, with landmarks Q̃, K̃ that are "
          "means of L even segments of the sequence (of all its tokens, if they are fewer) and ⁺ by six steps of "
          "a cubic iteration; conv is a depthwise convolution over the tokens, one filter a head, in "
          "self-attention only. The released code asks that L divides n and by default scales the first iterate by "
          "the largest norm in the batch; here any n will do and every sequence has a norm of its own.",
      .options = {{"landmarks", "128", "segments L", 1, {}},
                  {"iterations", "6", "steps of the inverse", 1, {}},
                  {"conv", "35", "width of the convolution, odd; 0: none", 0, {}}},
      .capabilities = {},
      .build = built<Nystromformer>};
  member.capabilities.cross_attention = true;
  member.capabilities.dropout = true;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·landmarks";
  return member;
}

}  // namespace dba::zoo

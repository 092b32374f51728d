#include <torch/torch.h>

#include <cmath>

#include "zoo/blocks.h"
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

/// An approximate pseudo-inverse by the paper's iteration, Z ← Z (13 I − A Z (15 I − A Z (7 I − A Z)))/4. Rows and
/// columns of zeros stay zeros. a (…, L, M).
at::Tensor approximate_inverse(const at::Tensor& a, int64_t iterations) {
  const auto scale = a.abs().sum(-2).amax({-1}) * a.abs().sum(-1).amax({-1});
  auto z = a.transpose(-2, -1) / scale.masked_fill(scale.eq(0), 1).unsqueeze(-1).unsqueeze(-1);
  const auto identity = torch::eye(a.size(-2), a.options());
  for (int64_t i = 0; i < iterations; ++i) {
    const auto az = torch::matmul(a, z);
    const auto inner = 15 * identity - torch::matmul(az, 7 * identity - az);
    z = torch::matmul(z, 13 * identity - torch::matmul(az, inner)) / 4;
  }
  return z;
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
    const auto scale = std::pow(static_cast<double>(head_width()), -0.25);
    const auto q = asking.take_whole(w_q->forward(queries.rows), heads) * scale;
    const auto k = asked.take_whole(w_k->forward(memory.rows), heads) * scale;
    const auto v = asked.take_whole(w_v->forward(memory.rows), heads);

    const auto type = q.scalar_type();
    const auto landmarks = integer("landmarks");
    const auto mean_q = segment_means(asking.lengths, std::min(landmarks, asking.size), asking.size, type);
    const auto mean_k = segment_means(asked.lengths, std::min(landmarks, asked.size), asked.size, type);
    const auto marks_q = torch::matmul(mean_q.unsqueeze(1), q);  // (B, H, L, d_h)
    const auto marks_k = torch::matmul(mean_k.unsqueeze(1), k);
    const auto real_q = mean_q.sum(2).gt(0).view({asking.batch, 1, -1, 1});
    const auto real_k = mean_k.sum(2).gt(0).view({asked.batch, 1, 1, -1});

    const bool masked = asking.real_whole().defined() || asked.real_whole().defined();
    const auto seen = masked ? real_k : Tensor();
    const auto to_marks = masked_scores(torch::matmul(q, marks_k.transpose(2, 3)), seen).softmax(3);
    auto between = masked_scores(torch::matmul(marks_q, marks_k.transpose(2, 3)), seen).softmax(3);
    if (masked) {
      between = between.masked_fill(real_q.logical_and(real_k).logical_not(), 0);
    }
    const auto from_marks =
        masked_scores(torch::matmul(marks_q, k.transpose(2, 3)), masked ? asked.valid.unsqueeze(1) : Tensor())
            .softmax(3);
    const auto inverse = approximate_inverse(between, integer("iterations"));
    auto mixed = torch::matmul(drop(to_marks), torch::matmul(inverse, torch::matmul(drop(from_marks), v)));
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

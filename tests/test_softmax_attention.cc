#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "dba/nn/softmax_attention.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "support/module_weights.h"
#include "support/per_head.h"

namespace dba::test {
namespace {

struct Plain {
  at::Tensor y;  ///< (n, d)
  at::Tensor p;  ///< (H, n, n)
};

Plain plain_attention(const at::Tensor& x, const SoftmaxAttention& module) {
  const int64_t heads = module->options.heads(), d_h = x.size(1) / heads;
  const at::Tensor q = affine(x, module->w_q->weight, module->w_q->bias);
  const at::Tensor k = affine(x, module->w_k->weight, module->w_k->bias);
  const at::Tensor v = affine(x, module->w_v->weight, module->w_v->bias);
  std::vector<at::Tensor> y, p;
  for (int64_t h = 0; h < heads; ++h) {
    const at::Tensor scores = head_columns(q, h, d_h).matmul(head_columns(k, h, d_h).t());
    p.push_back(at::softmax(scores / std::sqrt(static_cast<double>(d_h)), 1));
    y.push_back(p.back().matmul(head_columns(v, h, d_h)));
  }
  return {affine(at::cat(y, 1), module->w_o->weight, module->w_o->bias), at::stack(p)};
}

at::Tensor plain_batch(const at::Tensor& x, const PackedBatch& batch, const SoftmaxAttention& module) {
  std::vector<at::Tensor> y;
  for (int64_t b = 0; b < batch.count(); ++b)
    y.push_back(plain_attention(batch.rows_of(x, b), module).y);
  return at::cat(y);
}

SoftmaxAttention make_module(int64_t heads, bool bias, Random& random) {
  SoftmaxAttention module(SoftmaxAttentionOptions(16, heads).bias(bias));
  module->to(at::kDouble);
  random.fill(*module);
  return module;
}

TEST(SoftmaxAttentionModule, EqualsThePlainFormulaOnPackedSequences) {
  Random random(111);
  // On the CPU sequences of about one length are padded, others come one by one.
  for (const auto& lengths : {std::vector<int64_t>(kLengths), std::vector<int64_t>{5, 0, 6, 4, 6}}) {
    const PackedBatch batch(lengths);
    const at::Tensor x = random.leaf({batch.rows, 16});
    for (const int64_t heads : {1, 2, 4, 8}) {
      SCOPED_TRACE(at::tensor(lengths));
      SCOPED_TRACE(heads);
      SoftmaxAttention module = make_module(heads, heads != 2, random);
      const AttentionOutput output = module->forward(x, batch.sequences);
      expect_same_function({{"y", output.y}}, {plain_batch(x, batch, module)}, with_parameters({{"x", x}}, *module));
    }
  }
}

TEST(SoftmaxAttentionModule, PaddedEqualsPacked) {
  Random random(112);
  SoftmaxAttention module = make_module(4, true, random);
  const PackedBatch batch({3, 0, 6, 1});
  at::Tensor padded = at::full({4, 6, 16}, NAN, at::kDouble);
  const at::Tensor x = random.normal({batch.rows, 16});
  for (int64_t b = 0; b < 4; ++b)
    padded[b].slice(0, 0, batch.lengths[b]).copy_(batch.rows_of(x, b));
  padded.requires_grad_(true);
  const AttentionOutput output =
      module->forward(padded, Sequences::from_lengths(at::tensor(batch.lengths, at::kLong), 6));
  const AttentionOutput packed = module->forward(x, batch.sequences);
  for (int64_t b = 0; b < 4; ++b) {
    EXPECT_TRUE(close(output.y[b].slice(0, 0, batch.lengths[b]), batch.rows_of(packed.y, b)));
    EXPECT_EQ(output.y[b].slice(0, batch.lengths[b]).abs().sum().item<double>(), 0);
  }
  const at::Tensor gradient = torch::autograd::grad({output.y.square().sum()}, {padded})[0];
  EXPECT_TRUE(all_finite(gradient));
  EXPECT_EQ(gradient[1].abs().sum().item<double>(), 0);
  EXPECT_EQ(gradient[0].slice(0, 3).abs().sum().item<double>(), 0);
}

TEST(SoftmaxAttentionModule, ShowsTheWholeMap) {
  Random random(113);
  SoftmaxAttention module = make_module(2, true, random);
  const PackedBatch batch({3, 0, 6});
  const at::Tensor x = random.normal({batch.rows, 16});
  const AttentionOutput output = module->forward(x, batch.sequences, {}, /*need_weights=*/true);
  ASSERT_TRUE(output.weights.has_value());
  EXPECT_TRUE(close(output.y, plain_batch(x, batch, module)));
  for (int64_t b = 0; b < 3; ++b)
    expect_weights(output.weights->p[b], plain_attention(batch.rows_of(x, b), module).p, "P");
}

TEST(SoftmaxAttentionModule, DropoutFollowsTheSeedAndStopsInEvaluation) {
  Random random(114);
  SoftmaxAttention module(SoftmaxAttentionOptions(16, 2).dropout(0.5));
  module->to(at::kDouble);
  random.fill(*module);
  const PackedBatch batch({5, 8});
  const at::Tensor x = random.normal({batch.rows, 16});
  const auto run = [&](uint64_t seed) {
    torch::manual_seed(seed);
    return module->forward(x, batch.sequences).y;
  };
  EXPECT_TRUE(identical(run(1), run(1)));
  EXPECT_FALSE(identical(run(1), run(2)));
  module->eval();
  EXPECT_TRUE(close(run(1), plain_batch(x, batch, module)));
}

TEST(SoftmaxAttentionModule, TakesAnyStrides) {
  Random random(115);
  SoftmaxAttention module = make_module(2, true, random);
  const at::Tensor x = random.normal({7, 3, 32}).transpose(0, 1).slice(2, 0, 32, 2);
  EXPECT_TRUE(close(module->forward(x).y, module->forward(x.contiguous()).y));
}

}  // namespace
}  // namespace dba::test

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "dba/nn/dba_attention.h"
#include "dba/nn/softmax_attention.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "support/module_weights.h"
#include "support/per_head.h"

/// Settings in which the layer becomes something known.
namespace dba::test {
namespace {

int64_t parameter_count(const DBAttentionOptions& options) {
  int64_t count = 0;
  for (const at::Tensor& parameter : DBAttention(options)->parameters())
    count += parameter.numel();
  return count;
}

TEST(Limits, ParameterCounts) {
  const DBAttentionOptions options =
      DBAttentionOptions(256, 8).d_in(64).d_p(24).z_update(ZUpdate::replace).hands_on_z(false);
  EXPECT_EQ(parameter_count(DBAttentionOptions(options).form(Form::released)), 313024);
  // Four d × d maps, R, and two maps to the slots, with their biases.
  EXPECT_EQ(parameter_count(options), 4 * (256 * 256 + 256) + 8 * 32 * 8 + 2 * (256 * 192 + 192));
}

TEST(Limits, OneSlotInFormReleasedGivesEveryTokenTheSameRow) {
  Random random(141);
  DBAttention module(DBAttentionOptions(12, 3).d_p(1).d_in(6).form(Form::released).z_update(ZUpdate::replace));
  module->to(at::kDouble);
  random.fill(*module);
  const PackedBatch batch({5, 0, 9});
  const at::Tensor x = random.normal({batch.rows, 12}), z = random.normal({1, 12});
  const AttentionOutput output = module->forward(x, batch.sequences, z);
  const at::Tensor o = layer_norm_as_defined(affine(output.z.squeeze(1), module->w_v->weight, module->w_v->bias),
                                             module->norm->weight, module->norm->bias);
  const at::Tensor row = affine(o, module->w_o->weight, module->w_o->bias);
  for (const int64_t b : {0, 2})
    EXPECT_TRUE(close(batch.rows_of(output.y, b), row[b].unsqueeze(0).expand({batch.lengths[b], 12})));
}

TEST(Limits, OneSlotInFormPaperIsAWeightedMeanOfTheValues) {
  Random random(142);
  DBAttention module(DBAttentionOptions(12, 3).d_p(1).d_in(6).z_update(ZUpdate::replace));
  module->to(at::kDouble);
  random.fill(*module);
  const at::Tensor x = random.normal({9, 12});
  const at::Tensor weights = at::softmax(affine(x, module->f_c->weight, module->f_c->bias), 0);  // (n, H)
  const at::Tensor v = affine(x, module->w_v->weight, module->w_v->bias);
  std::vector<at::Tensor> means;
  for (int64_t h = 0; h < 3; ++h)
    means.push_back(weights.select(1, h).matmul(head_columns(v, h, 4)));
  const at::Tensor row = affine(at::cat(means).unsqueeze(0), module->w_o->weight, module->w_o->bias);
  for (const double slots : {0.0, 3.0})
    EXPECT_TRUE(close(module->forward(x, PackedBatch({9}).sequences, at::full({1, 12}, slots, at::kDouble)).y,
                      row.expand({9, 12})));
}

/// With as many slots as tokens and d_h ≥ 2n, Z_h = λ [I I] pinv([Q_hᵀ K_hᵀ]) makes Z_h Q_hᵀ = Z_h K_hᵀ = λ I, and
/// F = λ pinv(X) makes X F = λ I (for two sequences, F = λ pinv([X_1; X_2]) [I; I] serves both). All four compressions
/// are then identities, and what remains is softmax attention.
TEST(Limits, IdentityCompressionIsSoftmaxAttention) {
  constexpr double kLambda = 1e5;
  constexpr int64_t kTokens = 6, kHeads = 2, kHeadWidth = 16, kWidth = kHeads * kHeadWidth, kCount = 2;
  Random random(143);
  DBAttention module(DBAttentionOptions(kWidth, kHeads).d_p(kTokens).compress_width(false).z_update(ZUpdate::replace));
  SoftmaxAttention softmax(kWidth, kHeads);
  module->to(at::kDouble);
  softmax->to(at::kDouble);
  random.fill(*module);
  const at::Tensor x = random.normal({kCount, kTokens, kWidth});
  const at::Tensor eye = at::eye(kTokens, at::kDouble);
  const PackedBatch batch({kTokens, kTokens});
  at::Tensor z = at::zeros({kCount, kTokens, kWidth}, at::kDouble);
  {
    const torch::NoGradGuard no_grad;
    const std::vector<std::pair<torch::nn::Linear, torch::nn::Linear>> pairs = {{softmax->w_q, module->w_q},
                                                                                {softmax->w_k, module->w_k},
                                                                                {softmax->w_v, module->w_v},
                                                                                {softmax->w_o, module->w_o}};
    for (const auto& [to, from] : pairs) {
      to->weight.copy_(from->weight);
      to->bias.copy_(from->bias);
    }
    for (int64_t b = 0; b < kCount; ++b) {
      const at::Tensor q = module->w_q->forward(x[b]), k = module->w_k->forward(x[b]);
      for (int64_t h = 0; h < kHeads; ++h) {
        const at::Tensor both = at::cat({head_columns(q, h, kHeadWidth), head_columns(k, h, kHeadWidth)}).t();
        head_columns(z[b], h, kHeadWidth).copy_(kLambda * at::cat({eye, eye}, 1).matmul(at::pinverse(both, 1e-14)));
      }
    }
    const at::Tensor f = kLambda * at::pinverse(x.reshape({-1, kWidth}), 1e-14).matmul(at::cat({eye, eye}));
    for (const torch::nn::Linear& linear : {module->f_c, module->f_r}) {
      linear->weight.copy_(f.t().repeat({kHeads, 1}));
      linear->bias.zero_();
    }
  }
  for (const Order order : {Order::two_pass, Order::direct}) {
    module->options.order(order);
    const AttentionOutput output = module->forward(x, Sequences::dense(kCount, kTokens, at::kCPU), z, true);
    const AttentionOutput expected = softmax->forward(x, std::nullopt, {}, true);
    // Scores of size λ are known to λ ε.
    constexpr double kTolerance = kLambda * std::numeric_limits<double>::epsilon();
    EXPECT_TRUE(close(output.weights->w_r, eye.expand({kCount, kHeads, kTokens, kTokens}), kTolerance));
    EXPECT_TRUE(close(output.weights->w_r_prime, eye.expand({kCount, kHeads, kTokens, kTokens}), kTolerance));
    EXPECT_TRUE(close(output.weights->p, expected.weights->p, kTolerance));
    EXPECT_TRUE(close(output.y, expected.y, kTolerance));
  }
}

/// With one head, projecting before or after the compression is the same: A (X W) = (A X) W.
TEST(Limits, WithOneHeadTheTwoFormsCompressAlike) {
  Random random(144);
  const at::Tensor x = random.normal({11, 6}), z = random.normal({4, 6});
  const DBAttentionOptions options = DBAttentionOptions(6, 1).d_p(4).d_in(6).z_update(ZUpdate::replace);
  DBAttention paper(options), released(DBAttentionOptions(options).form(Form::released));
  paper->to(at::kDouble);
  released->to(at::kDouble);
  random.fill(*paper);
  random.fill(*released);
  {
    // Z_h Q_hᵀ/√d_h is (Z P_q)(X P_k)ᵀ/√e with P_q = I, P_k = P_v = W_Q.
    const torch::NoGradGuard no_grad;
    released->p_q->weight.copy_(at::eye(6, at::kDouble));
    released->p_q->bias.zero_();
    for (const torch::nn::Linear& linear : {released->p_k, released->p_v}) {
      linear->weight.copy_(paper->w_q->weight);
      linear->bias.copy_(paper->w_q->bias);
    }
  }
  const Sequences one = PackedBatch({11}).sequences;
  EXPECT_TRUE(close(released->forward(x, one, z).z, paper->forward(x, one, z).z));
}

}  // namespace
}  // namespace dba::test

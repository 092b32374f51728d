#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "dba/nn/classifier.h"
#include "support/comparison.h"
#include "support/layouts.h"

/// How the first weights of a classifier are drawn.
namespace dba::test {
namespace {

class InitialiseTest : public ::testing::Test {
 protected:
  /// Wide enough for statistics.
  static Classifier make(Initialise scheme) {
    torch::manual_seed(3);
    auto layer = EncoderLayerOptions(64, 4, 96);
    return Classifier(ClassifierOptions(EncoderOptions(layer, 1), 30)
                          .vocabulary(200)
                          .max_length(150)
                          .head(HeadKind::mlp)
                          .head_hidden(80)
                          .initialise(scheme));
  }
  static const DBAttentionImpl& attention_of(const Classifier& model) {
    return dynamic_cast<const DBAttentionImpl&>(*model->backbone->encoder->layer(0)->attention);
  }
  static double deviation(const at::Tensor& t) {
    return t.std().item<double>();
  }
  static bool is_zero(const at::Tensor& t) {
    return t.abs().max().item<double>() == 0.0;
  }
  /// All of t lies within ±bound and comes close to it.
  static void expect_uniform(const at::Tensor& t, double bound) {
    const double largest = t.abs().max().item<double>();
    EXPECT_LE(largest, bound * (1 + 1e-6));
    EXPECT_GE(largest, bound * 0.98);
    EXPECT_NEAR(deviation(t), bound / std::sqrt(3.0), 0.03 * bound);
  }
};

TEST_F(InitialiseTest, LikeLuna) {
  const Classifier model = make(Initialise::luna);
  const DBAttentionImpl& attention = attention_of(model);
  expect_uniform(attention.w_q->weight, std::sqrt(6.0 / 128.0 / 2.0));
  expect_uniform(attention.f_r->weight, std::sqrt(6.0 / 128.0 / 2.0));
  expect_uniform(attention.w_o->weight, std::sqrt(6.0 / 128.0));
  EXPECT_TRUE(is_zero(attention.w_q->bias) && is_zero(attention.w_o->bias) && is_zero(attention.f_r->bias));
  const ResidualBlockImpl& block = *model->backbone->encoder->layer(0)->block;
  expect_uniform(block.linear_1->weight, 1.0 / 8.0);
  expect_uniform(model->head->linear_1->weight, std::sqrt(6.0 / 144.0));
  EXPECT_TRUE(is_zero(model->head->linear_1->bias));
  EXPECT_NEAR(deviation(model->backbone->tokens->weight), 1.0 / 8.0, 0.003);
  EXPECT_NEAR(deviation(model->backbone->positions->weight), 1.0 / 8.0, 0.004);
  EXPECT_NEAR(deviation(model->backbone->encoder->slots->z), 1.0 / 8.0, 0.01);
}

TEST_F(InitialiseTest, LikeBert) {
  const Classifier model = make(Initialise::bert);
  for (const auto& parameter : model->named_parameters()) {
    const std::string& name = parameter.key();
    if (name.find("norm") != std::string::npos)
      continue;
    if (name.ends_with("bias")) {
      EXPECT_TRUE(is_zero(parameter.value())) << name;
    } else if (!name.ends_with("attention.r")) {
      EXPECT_NEAR(deviation(parameter.value()), 0.02, 0.0015) << name;
    }
  }
}

TEST_F(InitialiseTest, LikeTorch) {
  const Classifier model = make(Initialise::torch_default);
  const DBAttentionImpl& attention = attention_of(model);
  expect_uniform(attention.w_q->weight, 1.0 / 8.0);
  expect_uniform(attention.w_o->weight, 1.0 / 8.0);
  EXPECT_FALSE(is_zero(attention.w_q->bias));
  expect_uniform(model->backbone->positions->weight, 0.02);
  EXPECT_NEAR(deviation(model->backbone->tokens->weight), 1.0 / 8.0, 0.003);
}

TEST_F(InitialiseTest, StartsNormsAtTheIdentityAndForgetsWhatWasLearned) {
  for (const Initialise scheme : {Initialise::luna, Initialise::bert, Initialise::torch_default}) {
    Classifier model = make(scheme);
    {
      const torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters())
        parameter.fill_(kNaN);
    }
    model->reset_parameters();
    for (const auto& parameter : model->named_parameters()) {
      EXPECT_TRUE(all_finite(parameter.value())) << to_string(scheme) << ": " << parameter.key();
      if (parameter.key().find("norm.weight") != std::string::npos) {
        EXPECT_TRUE(identical(parameter.value(), at::ones_like(parameter.value()))) << parameter.key();
      }
    }
  }
}

}  // namespace
}  // namespace dba::test

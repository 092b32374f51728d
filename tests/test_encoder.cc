#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "dba/nn/encoder.h"
#include "dba/nn/make_attention.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "support/layouts.h"

namespace dba::test {
namespace {

constexpr int64_t kLayerWidth = 8;
const std::vector<int64_t> kLayerLengths = {5, 0, 17, 1};

struct EncoderCase {
  std::string method;
  Form form;
  ZUpdate z_update;
  int64_t depth;
  bool tied;
  bool norm_first;
  Activation activation;
  NormKind norm;

  std::string name() const {
    return method + "_" + to_string(form) + "_" + to_string(z_update) + "_depth" + std::to_string(depth) +
           (tied ? "_tied" : "_separate") + (norm_first ? "_pre" : "_post") + "_" + to_string(activation) + "_" +
           to_string(norm);
  }
};

std::ostream& operator<<(std::ostream& stream, const EncoderCase& c) {
  return stream << c.name();
}

/// Every form with every Z update, depth and tying; the other switches take turns.
std::vector<EncoderCase> encoder_cases() {
  std::vector<EncoderCase> cases;
  int turn = 0;
  for (const Form form : {Form::paper, Form::released})
    for (const ZUpdate z_update : {ZUpdate::residual_norm, ZUpdate::replace, ZUpdate::fixed, ZUpdate::own})
      for (const int64_t depth : {1, 3})
        for (const bool tied : {false, true}) {
          ++turn;
          cases.push_back({"dba", form, z_update, depth, tied, turn % 3 == 0,
                           turn % 2 == 0 ? Activation::gelu : Activation::relu,
                           turn % 5 == 0 ? NormKind::batch : NormKind::layer});
        }
  for (const bool norm_first : {false, true})
    cases.push_back({"softmax", Form::paper, ZUpdate::own, 2, false, norm_first, Activation::gelu, NormKind::layer});
  return cases;
}

EncoderLayerOptions layer_options(const EncoderCase& c) {
  const auto attention = DBAttentionOptions(kLayerWidth, 2).d_p(3).d_in(6).form(c.form).z_update(c.z_update);
  return EncoderLayerOptions(kLayerWidth, 2, 12)
      .attention(c.method)
      .attention_options(attention)
      .norm_first(c.norm_first)
      .activation(c.activation)
      .norm(c.norm);
}

Encoder make_encoder(const EncoderCase& c) {
  Encoder encoder(EncoderOptions(layer_options(c), c.depth).tied(c.tied).slots_layer_norm(c.depth == 3));
  encoder->to(at::kDouble);
  Random(7).fill(*encoder);
  return encoder;
}

class EncoderTest : public ::testing::TestWithParam<EncoderCase> {};

TEST_P(EncoderTest, GivesEveryParameterAGradient) {
  Encoder encoder = make_encoder(GetParam());
  const PackedBatch batch(kLayerLengths);
  const at::Tensor x = Random(1).leaf({batch.rows, kLayerWidth});
  random_projection({encoder->forward(x, batch.sequences)}, 2).backward();
  EXPECT_TRUE(all_finite(x.grad()));
  for (const auto& parameter : encoder->named_parameters()) {
    ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
    EXPECT_TRUE(all_finite(parameter.value().grad())) << parameter.key();
  }
}

TEST_P(EncoderTest, PaddingChangesNothingWhateverItHolds) {
  Encoder encoder = make_encoder(GetParam());
  const PackedBatch batch(kLayerLengths);
  const at::Tensor x = Random(3).leaf({batch.rows, kLayerWidth});
  const at::Tensor expected = encoder->forward(x, batch.sequences);
  const Sequences sequences = padded_sequences(batch, 20);
  const at::Tensor y = encoder->forward(padded(x, batch, 20, kNaN), sequences);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({batch.count(), 20, kLayerWidth}));
  expect_same_function({{"y", unpadded(y, batch)}}, {expected}, with_parameters({{"x", x}}, *encoder));
  const at::Tensor nobody = sequences.row_mask().logical_not().view({batch.count(), 20});
  EXPECT_TRUE(identical(y.index({nobody}), at::zeros({4 * 20 - batch.rows, kLayerWidth}, at::kDouble)));
}

TEST_P(EncoderTest, PaddingGetsNoGradient) {
  Encoder encoder = make_encoder(GetParam());
  const PackedBatch batch(kLayerLengths);
  const at::Tensor x = padded(Random(3).normal({batch.rows, kLayerWidth}), batch, 20, kNaN).requires_grad_(true);
  const Sequences sequences = padded_sequences(batch, 20);
  random_projection({encoder->forward(x, sequences)}, 4).backward();
  const at::Tensor nobody = sequences.row_mask().logical_not().view({batch.count(), 20});
  EXPECT_TRUE(identical(x.grad().index({nobody}), at::zeros({4 * 20 - batch.rows, kLayerWidth}, at::kDouble)));
}

TEST_P(EncoderTest, TreatsEverySequenceByItself) {
  Encoder encoder = make_encoder(GetParam());
  // In training, BatchNorm ties the sequences of a batch together on purpose.
  encoder->eval();
  const PackedBatch batch(kLayerLengths);
  const at::Tensor x = Random(5).leaf({batch.rows, kLayerWidth});
  std::vector<at::Tensor> one_by_one;
  for (int64_t b = 0; b < batch.count(); ++b)
    one_by_one.push_back(encoder->forward(batch.rows_of(x, b).unsqueeze(0)).squeeze(0));
  expect_same_function({{"y", encoder->forward(x, batch.sequences)}}, {at::cat(one_by_one)},
                       with_parameters({{"x", x}}, *encoder));
}

TEST_P(EncoderTest, CloneComputesTheSameWithParametersOfItsOwn) {
  Encoder encoder = make_encoder(GetParam());
  const auto copy = std::dynamic_pointer_cast<EncoderImpl>(encoder->clone());
  encoder->eval();
  copy->eval();
  const PackedBatch batch(kLayerLengths);
  const at::Tensor x = Random(6).normal({batch.rows, kLayerWidth});
  const at::Tensor y = encoder->forward(x, batch.sequences);
  EXPECT_TRUE(identical(copy->forward(x, batch.sequences), y));
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : encoder->parameters())
      parameter.zero_();
  }
  EXPECT_TRUE(identical(copy->forward(x, batch.sequences), y));
}

/// The stack as the definition reads, out of the layers' own attentions, weights and norms.
TEST_P(EncoderTest, IsItsDefinition) {
  const EncoderCase& c = GetParam();
  Encoder encoder = make_encoder(c);
  encoder->eval();
  const PackedBatch batch(kLayerLengths);
  const at::Tensor input = Random(8).leaf({batch.rows, kLayerWidth});
  const auto norm = [&](const TokenNorm& n, const at::Tensor& v) {
    if (c.norm == NormKind::batch)
      return v / std::sqrt(1 + 1e-5) * n->weight + n->bias;
    return at::layer_norm(v, {kLayerWidth}, n->weight, n->bias, 1e-5);
  };
  at::Tensor x = input;
  at::Tensor z;
  if (encoder->slots)
    z = encoder->slots->forward(batch.count());
  for (int64_t index = 0; index < c.depth; ++index) {
    EncoderLayer layer = encoder->layer(index);
    ResidualBlock block = layer->block;
    auto feed_forward = [&](const at::Tensor& v) {
      const at::Tensor hidden = block->linear_1(v);
      return block->linear_2(c.activation == Activation::gelu ? at::gelu(hidden) : at::relu(hidden));
    };
    const at::Tensor seen = c.norm_first ? norm(block->attention_norm, x) : x;
    const AttentionOutput output = layer->attention_layer().forward(seen, batch.sequences, z);
    if (c.norm_first) {
      x = x + output.y;
      x = x + feed_forward(norm(block->ffn_norm, x));
    } else {
      x = norm(block->attention_norm, x + output.y);
      x = norm(block->ffn_norm, x + feed_forward(x));
    }
    const bool updates = c.z_update == ZUpdate::residual_norm || c.z_update == ZUpdate::replace;
    if (encoder->slots && updates && index + 1 < c.depth) {
      ASSERT_TRUE(output.z.defined());
      z = output.z;
    }
  }
  if (c.norm_first)
    x = norm(encoder->norm, x);
  expect_same_function({{"y", encoder->forward(input, batch.sequences)}}, {x},
                       with_parameters({{"x", input}}, *encoder));
}

INSTANTIATE_TEST_SUITE_P(Stacks, EncoderTest, ::testing::ValuesIn(encoder_cases()),
                         [](const auto& info) { return info.param.name(); });

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters())
    count += parameter.numel();
  return count;
}

TEST(EncoderParameters, AreCountedOnceWhenTied) {
  const EncoderCase base{"dba", Form::paper, ZUpdate::residual_norm, 3,
                         false, false,       Activation::gelu,       NormKind::layer};
  EncoderCase tied = base;
  tied.tied = true;
  const int64_t slots = 3 * kLayerWidth + 2 * kLayerWidth;
  const int64_t z_norm = 2 * kLayerWidth;
  const int64_t layer = parameter_count(*EncoderLayer(layer_options(base)));
  EXPECT_EQ(parameter_count(*make_encoder(tied)), slots + layer);
  // The last layer hands on no Z and so has no norm for it.
  EXPECT_EQ(parameter_count(*make_encoder(base)), slots + 3 * layer - z_norm);
}

TEST(EncoderParameters, HaveNoSlotsWhereTheAttentionTakesNone) {
  for (const EncoderCase& c : encoder_cases()) {
    const bool carries_slots = c.method == "dba" && c.z_update != ZUpdate::own;
    EXPECT_EQ(make_encoder(c)->named_parameters().contains("slots.z"), carries_slots) << c.name();
  }
}

TEST(EncoderModes, DropOutInTrainingAndNotInEvaluation) {
  auto layer = EncoderLayerOptions(kLayerWidth, 2, 12).dropout(0.3).activation_dropout(0.3);
  layer.attention_options().dropout(0.3).z_dropout(0.3);
  Encoder encoder(EncoderOptions(layer, 2));
  const at::Tensor x = torch::randn({2, 9, kLayerWidth});
  torch::manual_seed(1);
  const at::Tensor first = encoder(x);
  EXPECT_FALSE(at::equal(encoder(x), first));
  torch::manual_seed(1);
  EXPECT_TRUE(identical(encoder(x), first));
  encoder->eval();
  EXPECT_TRUE(identical(encoder(x), encoder(x)));
}

TEST(TokenNormTest, OfABatchIsBatchNormOnThePackedRows) {
  const PackedBatch batch({7, 0, 12, 1});
  TokenNorm norm(TokenNormOptions(kLayerWidth).kind(NormKind::batch));
  torch::nn::BatchNorm1d expected{torch::nn::BatchNorm1dOptions(kLayerWidth)};
  norm->to(at::kDouble);
  expected->to(at::kDouble);
  Random random(11);
  random.fill(*norm);
  {
    const torch::NoGradGuard no_grad;
    expected->weight.copy_(norm->weight);
    expected->bias.copy_(norm->bias);
  }
  const Sequences sequences = padded_sequences(batch, 15);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = random.leaf({batch.rows, kLayerWidth}, 2.0);
    const at::Tensor rows = padded(x, batch, 15, kNaN).view({-1, kLayerWidth});
    const at::Tensor y = unpadded(norm(rows, sequences.row_mask()).view({4, 15, kLayerWidth}), batch);
    const at::Tensor y_expected = expected(x);
    EXPECT_TRUE(close(y, y_expected));
    norm->zero_grad();
    expected->zero_grad();
    const at::Tensor gradient = torch::autograd::grad({random_projection({y}, 12)}, {x}, {}, true)[0];
    EXPECT_TRUE(close(gradient, torch::autograd::grad({random_projection({y_expected}, 12)}, {x}, {}, true)[0]));
    random_projection({y}, 12).backward();
    random_projection({y_expected}, 12).backward();
    EXPECT_TRUE(close(norm->weight.grad(), expected->weight.grad()));
    EXPECT_TRUE(close(norm->bias.grad(), expected->bias.grad()));
  }
  EXPECT_TRUE(close(norm->running_mean, expected->running_mean));
  EXPECT_TRUE(close(norm->running_var, expected->running_var));
  norm->eval();
  expected->eval();
  const at::Tensor x = random.normal({batch.rows, kLayerWidth});
  EXPECT_TRUE(close(norm(x), expected(x)));
}

TEST(TokenNormTest, OfABatchWithoutTokensKeepsItsStatistics) {
  TokenNorm norm(TokenNormOptions(kLayerWidth).kind(NormKind::batch));
  norm(at::full({3, kLayerWidth}, kNaN, at::kFloat), at::zeros({3}, at::kBool));
  EXPECT_TRUE(identical(norm->running_mean, at::zeros({kLayerWidth})));
  EXPECT_TRUE(identical(norm->running_var, at::ones({kLayerWidth})));
}

TEST(MakeAttention, NamesTheMethodsItKnows) {
  expect_refusal([] { make_attention("dbaa", DBAttentionOptions(8, 2)); },
                 {"make_attention", "dba", "softmax", "\"dbaa\""});
  expect_refusal([] { register_attention("dba", nullptr); }, {"register_attention", "\"dba\"", "taken"});
  EXPECT_NE(dynamic_cast<Attention*>(make_attention("softmax", DBAttentionOptions(8, 2)).get()), nullptr);
}

TEST(MakeAttention, TakesNewMethods) {
  register_attention("three slots", [](const DBAttentionOptions& options) {
    return DBAttention(DBAttentionOptions(options).d_p(3)).ptr();
  });
  const EncoderLayer layer(EncoderLayerOptions(8, 2, 4).attention("three slots"));
  EXPECT_EQ(std::dynamic_pointer_cast<DBAttentionImpl>(layer->attention)->options.d_p(), 3);
  EXPECT_EQ(std::dynamic_pointer_cast<DBAttentionImpl>(layer->attention)->options.heads(), 2);
}

TEST(EncoderRefuses, WhatCannotBeRight) {
  const EncoderOptions options(EncoderLayerOptions(8, 2, 4), 1);
  Encoder encoder(options);
  expect_refusal([&] { encoder(at::zeros({2, 5, 7})); }, {"Encoder::forward", "x", "(B, n, 8)", "7"});
  expect_refusal([&] { encoder(at::zeros({5, 8})); }, {"Encoder::forward", "plain batch", "Sequences"});
  expect_refusal(
      [&] {
        encoder(at::zeros({9, 8}), Sequences::dense(2, 5, at::kCPU));
      },
      {"Encoder::forward", "10", "9"});
  expect_refusal(
      [&] {
        encoder(at::zeros({5, 2, 8}), Sequences::dense(2, 5, at::kCPU));
      },
      {"Encoder::forward", "padded to 5"});
  expect_refusal([&] { Encoder(EncoderOptions(options).depth(0)); }, {"Encoder", "depth", "0"});
  expect_refusal([] { EncoderLayer(EncoderLayerOptions(8, 2, 0)); }, {"d_ffn", "0"});
  expect_refusal([] { EncoderLayer(EncoderLayerOptions(8, 2, 4).dropout(kNaN)); }, {"dropout", "[0, 1)", "nan"});
  expect_refusal([] { parse_activation("tanh"); }, {"parse_activation", "gelu, relu", "tanh"});
  expect_refusal([] { parse_norm_kind("group"); }, {"parse_norm_kind", "layer, batch", "group"});
}

TEST(EncoderPrints, WhatItIsMadeOf) {
  std::ostringstream text;
  text << *Encoder(EncoderOptions(EncoderLayerOptions(8, 2, 4).norm_first(true), 2));
  for (const char* part : {"dba::Encoder(depth=2, tied=false)", "dba::EncoderLayer(d=8, heads=2, attention=dba)",
                           "norm_first=true", "dba::TokenNorm(8, kind=layer"})
    EXPECT_NE(text.str().find(part), std::string::npos) << part << " in " << text.str();
}

}  // namespace
}  // namespace dba::test

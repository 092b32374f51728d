#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dba/nn/classifier.h"
#include "dba/nn/dba_attention.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "support/module_weights.h"
#include "support/released_by_hand.h"

/// DBAttention in form `released` against the equations of the authors' code.
namespace dba::test {
namespace {

constexpr uint64_t kReleasedSeed = 4321;

struct ReleasedExpected {
  at::Tensor y, c;
  std::vector<ReleasedResult> parts;
};

ReleasedExpected released_transcribed(const at::Tensor& x, const PackedBatch& batch, const at::Tensor& z,
                                      const DBAttention& module, const ops::Dropout& dropout) {
  const int64_t heads = module->options.heads();
  ReleasedExpected expected;
  std::vector<at::Tensor> y, c;
  for (int64_t b = 0; b < batch.count(); ++b) {
    const at::Tensor tokens = batch.rows_of(x, b);
    expected.parts.push_back(
        released_attention(tokens, of_sequence(z, b, 2), released_weights(*module), heads,
                           released_masks(dropout, b, tokens.size(0), heads, module->options.d_p())));
    y.push_back(expected.parts.back().y);
    c.push_back(expected.parts.back().c);
  }
  expected.y = at::cat(y);
  expected.c = at::stack(c);
  return expected;
}

class ReleasedForm : public ::testing::TestWithParam<LayerCase> {
 protected:
  const LayerCase& layer = GetParam();
  Random random{91};
  PackedBatch batch{kLengths};
  at::Tensor x = random.leaf({batch.rows, LayerCase::d});
  at::Tensor z = layer.per_sequence ? random.leaf({batch.count(), layer.d_p, LayerCase::d})
                                    : random.leaf({layer.d_p, LayerCase::d});

  DBAttention make_module(Order order, ZUpdate z_update) {
    DBAttention module(DBAttentionOptions(LayerCase::d, layer.heads)
                           .d_p(layer.d_p)
                           .d_in(LayerCase::d_in)
                           .form(Form::released)
                           .z_update(z_update)
                           .bias(layer.bias)
                           .dropout(layer.dropout)
                           .order(order));
    module->to(at::kDouble);
    random.fill(*module);
    return module;
  }
};

TEST_P(ReleasedForm, EqualsTheEquationsInBothOrders) {
  for (const Order order : {Order::two_pass, Order::direct}) {
    SCOPED_TRACE(order == Order::two_pass ? "two_pass" : "direct");
    DBAttention module = make_module(order, ZUpdate::replace);
    EXPECT_EQ(module->head_width(), layer.head_width());
    const ops::Dropout dropout = key_of_seed(layer.dropout, kReleasedSeed);
    const AttentionOutput output = module->forward(x, batch.sequences, z);
    const ReleasedExpected expected = released_transcribed(x, batch, z, module, dropout);
    expect_same_function({{"y", output.y}, {"z", output.z}}, {expected.y, expected.c},
                         with_parameters({{"x", x}, {"z", z}}, *module));
  }
}

TEST_P(ReleasedForm, ShowsItsWeights) {
  for (const Order order : {Order::two_pass, Order::direct}) {
    SCOPED_TRACE(order == Order::two_pass ? "two_pass" : "direct");
    DBAttention module = make_module(order, ZUpdate::replace);
    module->eval();
    const AttentionOutput output = module->forward(x, batch.sequences, z, /*need_weights=*/true);
    const ReleasedExpected expected = released_transcribed(x, batch, z, module, {});
    EXPECT_TRUE(close(output.y, expected.y));
    ASSERT_TRUE(output.weights.has_value());
    for (int64_t b = 0; b < batch.count(); ++b) {
      const ReleasedResult& part = expected.parts[static_cast<size_t>(b)];
      expect_weights(output.weights->w_r[b], part.a, "A");
      expect_weights(output.weights->w_r_prime[b], part.u, "U");
      if (batch.lengths[static_cast<size_t>(b)] > 0)
        expect_weights(output.weights->p[b], part.s, "S");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, ReleasedForm, ::testing::ValuesIn(layer_cases()), case_name);

TEST(ReleasedFormModule, TwoLayersHandTheCompressedSequenceOn) {
  Random random(92);
  const PackedBatch batch(kShortLengths);
  const at::Tensor x = random.leaf({batch.rows, 12}), z = random.leaf({5, 12});
  const auto make = [&] {
    DBAttention module(DBAttentionOptions(12, 3).d_p(5).d_in(6).form(Form::released).z_update(ZUpdate::replace));
    module->to(at::kDouble);
    random.fill(*module);
    return module;
  };
  DBAttention first = make(), second = make();
  const AttentionOutput one = first->forward(x, batch.sequences, z);
  const AttentionOutput two = second->forward(one.y, batch.sequences, one.z);
  const ReleasedExpected expected_one = released_transcribed(x, batch, z, first, {});
  const ReleasedExpected expected_two = released_transcribed(expected_one.y, batch, expected_one.c, second, {});
  expect_same_function({{"y", two.y}, {"z", two.z}}, {expected_two.y, expected_two.c},
                       with_parameters(with_parameters({{"x", x}, {"z", z}}, *first), *second));
}

TEST(ReleasedFormModule, ResidualSlotsAreNormalised) {
  Random random(93);
  const PackedBatch batch({6, 0, 2});
  const at::Tensor x = random.leaf({batch.rows, 12}), z = random.leaf({3, 5, 12});
  DBAttention module(DBAttentionOptions(12, 3).d_p(5).d_in(6).form(Form::released));
  module->to(at::kDouble);
  random.fill(*module);
  const ReleasedExpected expected = released_transcribed(x, batch, z, module, {});
  const AttentionOutput output = module->forward(x, batch.sequences, z);
  expect_same_function({{"z", output.z}},
                       {layer_norm_as_defined(z + expected.c, module->z_norm->weight, module->z_norm->bias)},
                       {{"x", x}, {"z", z}});
}

// The whole classifier of the time-series experiments: Z into the first layer, C instead of it into the second, the
// LayerNorm before reconstruction, padding that only the compression is told of, zeroed rows in front of the head.
TEST(ReleasedFormModule, TheClassifierEqualsATranscriptionInNumbersWithWeightsWrittenByHand) {
  constexpr int64_t d = 8, heads = 2, d_p = 3, d_in = 6, layers = 2, longest = 5;
  const auto attention =
      DBAttentionOptions(d, heads).d_p(d_p).d_in(d_in).form(Form::released).z_update(ZUpdate::replace);
  const auto encoder = EncoderOptions(EncoderLayerOptions(d, heads, 10).attention_options(attention), layers);
  Classifier model(ClassifierOptions(encoder, 3)
                       .features(2)
                       .scale_features(true)
                       .max_length(longest)
                       .embedding_norm(false)
                       .output_activation(true)
                       .pooling(Pool::flatten));
  model->to(at::kDouble);
  SeriesClassifierByHand by_hand{d, heads, d_p, d_in, layers, longest, {}};
  const torch::NoGradGuard no_grad;
  size_t k = 0;
  for (const auto& parameter : model->named_parameters()) {
    const bool norm = parameter.key().find("norm.weight") != std::string::npos;
    Numbers values(static_cast<size_t>(parameter.value().numel()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = weight_by_hand(k, i) + (norm ? 1.0 : 0.0);
    parameter.value().copy_(torch::tensor(values, at::kDouble).view_as(parameter.value()));
    by_hand.weights[parameter.key()] = values;
    ++k;
  }
  const std::vector<Table> series = {{{0.5, -1.0}, {0.25, 2.0}, {-1.5, 0.75}, {1.0, 1.0}, {0.0, -0.5}},
                                     {{2.0, 0.5}, {-0.75, 0.0}, {1.25, -2.0}}};
  const PackedBatch batch({5, 3});
  std::vector<at::Tensor> rows;
  for (const Table& one : series)
    for (const Numbers& step : one)
      rows.push_back(torch::tensor(step, at::kDouble));
  const at::Tensor logits = model(at::stack(rows), batch.sequences);
  for (size_t b = 0; b < series.size(); ++b)
    EXPECT_TRUE(close(logits[static_cast<int64_t>(b)], torch::tensor(by_hand.logits(series[b]), at::kDouble))) << b;
}

}  // namespace
}  // namespace dba::test

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dba/nn/dba_attention.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "support/module_weights.h"

/// DBAttention in form `paper` against the paper's equations.
namespace dba::test {
namespace {

constexpr uint64_t kPaperSeed = 1234;

struct PaperExpected {
  at::Tensor y, c;
  std::vector<PaperResult> parts;
};

PaperExpected paper_transcribed(const at::Tensor& x, const PackedBatch& batch, const at::Tensor& z,
                                const DBAttention& module, const ops::Dropout& dropout) {
  const DBAttentionOptions& options = module->options;
  const PaperWeights weights = paper_weights(*module);
  PaperExpected expected;
  std::vector<at::Tensor> y, c;
  for (int64_t b = 0; b < batch.count(); ++b) {
    const at::Tensor tokens = batch.rows_of(x, b);
    expected.parts.push_back(paper_attention(tokens, of_sequence(z, b, 2), weights, options.heads(),
                                             options.normalise() == Normalise::linear,
                                             paper_masks(dropout, b, tokens.size(0), options.heads(), options.d_p())));
    y.push_back(expected.parts.back().y);
    c.push_back(expected.parts.back().c);
  }
  expected.y = at::cat(y);
  expected.c = at::stack(c);
  return expected;
}

/// Hands C on, so that it can be compared too.
DBAttention make_module(DBAttentionOptions options, Random& random) {
  DBAttention module(options.z_update(ZUpdate::replace));
  module->to(at::kDouble);
  random.fill(*module);
  return module;
}

class PaperForm : public ::testing::TestWithParam<LayerCase> {
 protected:
  const LayerCase& layer = GetParam();
  Random random{81};
  PackedBatch batch{kLengths};
  at::Tensor x = random.leaf({batch.rows, LayerCase::d});
  at::Tensor z = layer.per_sequence ? random.leaf({batch.count(), layer.d_p, LayerCase::d})
                                    : random.leaf({layer.d_p, LayerCase::d});

  DBAttentionOptions options() const {
    return DBAttentionOptions(LayerCase::d, layer.heads)
        .d_p(layer.d_p)
        .d_in(LayerCase::d_in)
        .normalise(layer.linear ? Normalise::linear : Normalise::softmax)
        .bias(layer.bias)
        .dropout(layer.dropout);
  }
};

TEST_P(PaperForm, EqualsTheEquationsInBothOrders) {
  for (const Order order : {Order::two_pass, Order::direct}) {
    for (const bool compress_width : {true, false}) {
      SCOPED_TRACE(order == Order::two_pass ? "two_pass" : "direct");
      SCOPED_TRACE(compress_width ? "with R" : "R = I");
      DBAttention module = make_module(options().order(order).compress_width(compress_width), random);
      EXPECT_EQ(module->r.defined(), compress_width);
      const ops::Dropout dropout = key_of_seed(layer.dropout, kPaperSeed);
      const AttentionOutput output = module->forward(x, batch.sequences, z);
      const PaperExpected expected = paper_transcribed(x, batch, z, module, dropout);
      expect_same_function({{"y", output.y}, {"z", output.z}}, {expected.y, expected.c},
                           with_parameters({{"x", x}, {"z", z}}, *module));
    }
  }
}

TEST_P(PaperForm, ShowsItsWeightsAndDropsNothingInEvaluation) {
  for (const Order order : {Order::two_pass, Order::direct}) {
    SCOPED_TRACE(order == Order::two_pass ? "two_pass" : "direct");
    DBAttention module = make_module(options().order(order), random);
    module->eval();
    const AttentionOutput output = module->forward(x, batch.sequences, z, /*need_weights=*/true);
    const PaperExpected expected = paper_transcribed(x, batch, z, module, {});
    EXPECT_TRUE(close(output.y, expected.y));
    EXPECT_TRUE(close(output.z, expected.c));
    ASSERT_TRUE(output.weights.has_value());
    const AttentionWeights& weights = *output.weights;
    for (int64_t b = 0; b < batch.count(); ++b) {
      const PaperResult& part = expected.parts[static_cast<size_t>(b)];
      expect_weights(weights.w_r[b], part.w_r, "W_r");
      expect_weights(weights.w_c[b], part.w_c, "W_c");
      expect_weights(weights.w_c_prime[b], part.w_c_prime, "W_c'");
      expect_weights(weights.w_r_prime[b], part.w_r_prime, "W_r'");
      if (batch.lengths[static_cast<size_t>(b)] > 0)
        expect_weights(weights.p[b], part.p, "P'");
      if (batch.lengths[static_cast<size_t>(b)] > 0 && !layer.linear) {
        const at::Tensor ones = at::ones({layer.heads, layer.d_p}, at::kDouble);
        EXPECT_TRUE(close(weights.w_r[b].sum(-1), ones));
        EXPECT_TRUE(close(weights.w_c[b].sum(-1), ones));
        EXPECT_TRUE(close(weights.p[b].sum(-1), ones));
        EXPECT_TRUE(close(weights.w_c_prime[b].sum(-2), ones));
        EXPECT_TRUE(close(weights.w_r_prime[b].sum(-1).sum(-1),
                          at::full({layer.heads}, batch.lengths[static_cast<size_t>(b)], at::kDouble)));
      }
    }
    EXPECT_FALSE(module->forward(x, batch.sequences, z).weights.has_value());
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, PaperForm, ::testing::ValuesIn(layer_cases()), case_name);

TEST(PaperFormModule, WithoutLengthCompressionFormsTheWholeMap) {
  Random random(82);
  const PackedBatch batch(kShortLengths);
  const at::Tensor x = random.leaf({batch.rows, 12}), z = random.leaf({3, 12});
  for (const bool compress_width : {true, false}) {
    SCOPED_TRACE(compress_width);
    DBAttention module(DBAttentionOptions(12, 3).d_p(3).d_in(6).compress_length(false).compress_width(compress_width));
    module->to(at::kDouble);
    random.fill(*module);
    EXPECT_FALSE(module->takes_slots());
    const AttentionOutput output = module->forward(x, batch.sequences, z, /*need_weights=*/true);
    std::vector<at::Tensor> y;
    for (int64_t b = 0; b < batch.count(); ++b) {
      const PaperResult part = paper_attention_full_length(batch.rows_of(x, b), paper_weights(*module), 3);
      y.push_back(part.y);
      expect_weights(output.weights->p[b], part.p, "P");
    }
    expect_same_function({{"y", output.y}}, {at::cat(y)}, with_parameters({{"x", x}}, *module));
    EXPECT_TRUE(identical(output.z, z));
  }
}

TEST(PaperFormModule, HandsOnSlotsAsAsked) {
  Random random(83);
  const PackedBatch batch({5, 0, 9});
  const at::Tensor x = random.leaf({batch.rows, 8});
  const at::Tensor z = random.leaf({3, 8});
  const auto options = [](ZUpdate update) { return DBAttentionOptions(8, 2).d_p(3).d_in(4).z_update(update); };

  DBAttention residual(options(ZUpdate::residual_norm));
  residual->to(at::kDouble);
  random.fill(*residual);
  const PaperExpected expected = paper_transcribed(x, batch, z, residual, {});
  const AttentionOutput output = residual->forward(x, batch.sequences, z);
  expect_same_function(
      {{"y", output.y}, {"z", output.z}},
      {expected.y, layer_norm_as_defined(z + expected.c, residual->z_norm->weight, residual->z_norm->bias)},
      with_parameters({{"x", x}, {"z", z}}, *residual));

  DBAttention fixed(options(ZUpdate::fixed));
  fixed->to(at::kDouble);
  EXPECT_TRUE(identical(fixed->forward(x, batch.sequences, z).z, z));

  DBAttention own(options(ZUpdate::own));
  own->to(at::kDouble);
  random.fill(*own);
  EXPECT_FALSE(own->takes_slots());
  const AttentionOutput alone = own->forward(x, batch.sequences);
  expect_same_function({{"y", alone.y}}, {paper_transcribed(x, batch, own->slots->z, own, {}).y},
                       with_parameters({{"x", x}}, *own));
}

TEST(PaperFormModule, RegistersOnlyWhatItUses) {
  const auto names = [](const DBAttentionOptions& options) {
    std::vector<std::string> all;
    for (const auto& parameter : DBAttention(options)->named_parameters())
      all.push_back(parameter.key());
    return all;
  };
  const auto has = [](const std::vector<std::string>& all, const std::string& start) {
    return std::any_of(all.begin(), all.end(), [&](const std::string& name) { return name.rfind(start, 0) == 0; });
  };
  const DBAttentionOptions options(8, 2);
  EXPECT_TRUE(has(names(options), "z_norm"));
  EXPECT_FALSE(has(names(options), "slots"));
  EXPECT_FALSE(has(names(DBAttentionOptions(options).hands_on_z(false)), "z_norm"));
  EXPECT_FALSE(has(names(DBAttentionOptions(options).z_update(ZUpdate::replace)), "z_norm"));
  EXPECT_TRUE(has(names(DBAttentionOptions(options).z_update(ZUpdate::own)), "slots.z"));
  EXPECT_FALSE(has(names(DBAttentionOptions(options).compress_width(false)), "r"));
  const std::vector<std::string> full_length = names(DBAttentionOptions(options).compress_length(false));
  EXPECT_FALSE(has(full_length, "f_c") || has(full_length, "f_r") || has(full_length, "z_norm"));
  for (const std::string& name : names(DBAttentionOptions(options).bias(false).hands_on_z(false)))
    EXPECT_EQ(name.find("bias"), std::string::npos) << name;
}

TEST(PaperFormModule, TakesAPlainBatch) {
  Random random(84);
  const at::Tensor x = random.normal({3, 7, 8}), z = random.normal({4, 8});
  DBAttention module = make_module(DBAttentionOptions(8, 2).d_p(4).d_in(4), random);
  const AttentionOutput plain = module->forward(x, std::nullopt, z);
  const AttentionOutput rows = module->forward(x.reshape({21, 8}), PackedBatch({7, 7, 7}).sequences, z);
  EXPECT_TRUE(close(plain.y, rows.y.reshape({3, 7, 8})));
  EXPECT_TRUE(close(plain.z, rows.z));
}

TEST(PaperFormModule, StreamsALongSequence) {
  Random random(85);
  const PackedBatch batch({20000});
  const at::Tensor x = random.leaf({batch.rows, 8}), z = random.leaf({4, 8});
  DBAttention module = make_module(DBAttentionOptions(8, 2).d_p(4).d_in(4), random);
  const AttentionOutput output = module->forward(x, batch.sequences, z);
  const PaperExpected expected = paper_transcribed(x, batch, z, module, {});
  expect_same_function({{"y", output.y}, {"z", output.z}}, {expected.y, expected.c},
                       with_parameters({{"x", x}, {"z", z}}, *module));
}

TEST(PaperFormModule, TakesAnyStrides) {
  Random random(86);
  const PackedBatch batch({4, 9});
  DBAttention module = make_module(DBAttentionOptions(8, 2).d_p(4).d_in(4), random);
  const at::Tensor x = random.normal({8, 2 * batch.rows}).t().slice(0, 0, 2 * batch.rows, 2);
  const at::Tensor z = random.normal({8, 4}).t().unsqueeze(0).expand({2, 4, 8});
  const AttentionOutput strided = module->forward(x, batch.sequences, z);
  const AttentionOutput dense = module->forward(x.contiguous(), batch.sequences, z.contiguous());
  EXPECT_TRUE(close(strided.y, dense.y));
  EXPECT_TRUE(close(strided.z, dense.z));
  const at::Tensor batch_first = random.normal({6, 2, 8}).transpose(0, 1);
  EXPECT_TRUE(close(module->forward(batch_first, std::nullopt, z).y,
                    module->forward(batch_first.contiguous(), std::nullopt, z).y));
}

}  // namespace
}  // namespace dba::test

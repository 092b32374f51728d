#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "dba/nn/classifier.h"
#include "dba/nn/dual_encoder.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "support/layouts.h"

namespace dba::test {
namespace {

constexpr int64_t kWidth = 8, kVocabulary = 11, kFeatures = 3, kClasses = 4, kLongest = 17;
const std::vector<int64_t> kMixedLengths = {5, 0, 17, 1};

EncoderOptions small_encoder(int64_t depth = 1, Form form = Form::paper) {
  const auto attention = DBAttentionOptions(kWidth, 2).d_p(3).d_in(6).form(form);
  return EncoderOptions(EncoderLayerOptions(kWidth, 2, 12).attention_options(attention), depth);
}

/// As the Long-Range Arena models are built.
ClassifierOptions arena_options() {
  return ClassifierOptions(small_encoder(2).slots_layer_norm(true), kClasses)
      .vocabulary(kVocabulary)
      .max_length(kLongest)
      .pooling(Pool::first)
      .head(HeadKind::mlp)
      .head_hidden(6);
}

/// As the time-series models are built.
ClassifierOptions time_series_options() {
  return ClassifierOptions(small_encoder(1, Form::released), kClasses)
      .features(kFeatures)
      .scale_features(true)
      .max_length(kLongest)
      .embedding_norm(false)
      .output_activation(true)
      .pooling(Pool::flatten)
      .initialise(Initialise::torch_default);
}

std::vector<std::pair<std::string, ClassifierOptions>> classifier_cases() {
  return {{"arena", arena_options()},
          {"time_series", time_series_options()},
          {"sinusoidal_mean", arena_options().position(Position::sinusoidal).pooling(Pool::mean)},
          {"bare_mean", time_series_options().position(Position::none).pooling(Pool::mean).scale_features(false)}};
}

template <class Module>
Module in_double(Module module, uint64_t seed) {
  module->to(at::kDouble);
  Random(seed).fill(*module);
  return module;
}

/// Random packed input: symbols, or features that a gradient is asked for.
at::Tensor packed_input(const ClassifierOptions& options, int64_t rows, uint64_t seed) {
  Random random(seed);
  return options.vocabulary() > 0 ? random.normal({rows}).mul(100).abs().to(at::kLong).remainder(kVocabulary)
                                  : random.leaf({rows, kFeatures});
}

std::vector<Named> differentiable(const at::Tensor& input, const torch::nn::Module& module) {
  return with_parameters(input.requires_grad() ? std::vector<Named>{{"input", input}} : std::vector<Named>{}, module);
}

TEST(ClassifierNames, AreStable) {
  const Classifier model(arena_options().encoder(small_encoder(2).slots_layer_norm(true)));
  std::vector<std::string> names;
  for (const auto& parameter : model->named_parameters())
    names.push_back(parameter.key());
  std::vector<std::string> expected = {"backbone.tokens.weight",          "backbone.positions.weight",
                                       "backbone.embedding_norm.weight",  "backbone.embedding_norm.bias",
                                       "backbone.encoder.slots.z",        "backbone.encoder.slots.norm.weight",
                                       "backbone.encoder.slots.norm.bias"};
  for (const std::string layer : {"0", "1"}) {
    const std::string prefix = "backbone.encoder.layers." + layer + ".";
    for (const char* name :
         {"attention.r",         "attention.w_q.weight",        "attention.w_q.bias",        "attention.w_k.weight",
          "attention.w_k.bias",  "attention.w_v.weight",        "attention.w_v.bias",        "attention.w_o.weight",
          "attention.w_o.bias",  "attention.f_c.weight",        "attention.f_c.bias",        "attention.f_r.weight",
          "attention.f_r.bias",  "block.attention_norm.weight", "block.attention_norm.bias", "block.linear_1.weight",
          "block.linear_1.bias", "block.linear_2.weight",       "block.linear_2.bias",       "block.ffn_norm.weight",
          "block.ffn_norm.bias"})
      expected.push_back(prefix + name);
  }
  // Only the first of the two layers hands on a Z.
  expected.push_back("backbone.encoder.layers.0.attention.z_norm.weight");
  expected.push_back("backbone.encoder.layers.0.attention.z_norm.bias");
  for (const char* name : {"head.linear_1.weight", "head.linear_1.bias", "head.linear_2.weight"})
    expected.push_back(name);
  std::sort(names.begin(), names.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names, expected);
  EXPECT_EQ(model->named_buffers().size(), 0u);
}

TEST(ClassifierTest, GivesTheSameLogitsPackedPaddedAndOneByOne) {
  for (const auto& [name, options] : classifier_cases()) {
    SCOPED_TRACE(name);
    Classifier model = in_double(Classifier(options), 31);
    const PackedBatch batch(kMixedLengths);
    const at::Tensor input = packed_input(options, batch.rows, 32);
    EXPECT_EQ(model(input, batch.sequences).sizes(), at::IntArrayRef({batch.count(), kClasses}));

    const at::Scalar filler = options.vocabulary() > 0 ? at::Scalar(-987) : at::Scalar(kNaN);
    const at::Tensor from_padded = model(padded(input, batch, 20, filler), padded_sequences(batch, 20));
    expect_same_function({{"padded", from_padded}}, {model(input, batch.sequences)}, differentiable(input, *model));

    std::vector<at::Tensor> one_by_one;
    for (int64_t b = 0; b < batch.count(); ++b)
      one_by_one.push_back(model(batch.rows_of(input, b).unsqueeze(0)));
    expect_same_function({{"one by one", at::cat(one_by_one)}}, {model(input, batch.sequences)},
                         differentiable(input, *model));
  }
}

TEST(ClassifierTest, GivesEveryParameterAGradient) {
  for (const auto& [name, options] : classifier_cases()) {
    Classifier model(options);
    const PackedBatch batch(kMixedLengths);
    const at::Tensor input = packed_input(options, batch.rows, 33);
    const at::Tensor single = input.is_floating_point() ? input.to(at::kFloat) : input;
    at::log_softmax(model(single, batch.sequences), 1).select(1, 0).sum().backward();
    for (const auto& parameter : model->named_parameters())
      EXPECT_TRUE(parameter.value().grad().defined()) << name << ": " << parameter.key();
  }
}

TEST(ClassifierTest, OfTimeSeriesIsItsDefinition) {
  Classifier model = in_double(Classifier(time_series_options()), 34);
  const BackboneImpl& backbone = *model->backbone;
  const PackedBatch batch({5, 17});
  const at::Tensor input = packed_input(time_series_options(), batch.rows, 35);
  std::vector<at::Tensor> flat;
  for (int64_t b = 0; b < batch.count(); ++b) {
    const at::Tensor series = batch.rows_of(input, b);
    const at::Tensor embedded = at::linear(series, backbone.features->linear->weight, backbone.features->linear->bias);
    const at::Tensor x = embedded * std::sqrt(8.0) + backbone.positions->weight.slice(0, 0, series.size(0));
    const at::Tensor y = at::gelu(model->backbone->encoder(x.unsqueeze(0)).squeeze(0));
    flat.push_back(at::cat({y, at::zeros({kLongest - y.size(0), kWidth}, at::kDouble)}).view({1, kLongest * kWidth}));
  }
  expect_same_function({{"logits", model(input, batch.sequences)}}, {model->head(at::cat(flat))},
                       differentiable(input, *model));
}

TEST(ClassifierTest, OfTokensIsItsDefinition) {
  Classifier model = in_double(Classifier(arena_options()), 36);
  const at::Tensor tokens = packed_input(arena_options(), 12, 37).view({2, 6});
  const BackboneImpl& backbone = *model->backbone;
  const at::Tensor sum = backbone.tokens->weight.index({tokens}) + backbone.positions->weight.slice(0, 0, 6);
  const at::Tensor x =
      at::layer_norm(sum, {kWidth}, backbone.embedding_norm->weight, backbone.embedding_norm->bias, 1e-5);
  const at::Tensor first = model->backbone->encoder(x).select(1, 0);
  const at::Tensor hidden = at::relu(at::linear(first, model->head->linear_1->weight, model->head->linear_1->bias));
  expect_same_function({{"logits", model(tokens)}}, {hidden.matmul(model->head->linear_2->weight.t())},
                       differentiable(tokens, *model));
}

TEST(ClassifierTest, LearnsSixteenRandomSequencesByHeart) {
  for (const Form form : {Form::paper, Form::released})
    for (const bool of_tokens : {true, false}) {
      SCOPED_TRACE(to_string(form) + (of_tokens ? " tokens" : " features"));
      torch::manual_seed(5);
      auto options = ClassifierOptions(small_encoder(2, form), kClasses).max_length(12);
      of_tokens ? options.vocabulary(kVocabulary) : options.features(kFeatures);
      Classifier model(options);
      const at::Tensor input = of_tokens ? torch::randint(kVocabulary, {16, 12}) : torch::randn({16, 12, kFeatures});
      const Sequences sequences = Sequences::from_lengths(torch::randint(4, 13, {16}), 12);
      const at::Tensor labels = torch::randint(kClasses, {16});
      torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.02));
      for (int step = 0; step < 60; ++step) {
        adam.zero_grad();
        torch::nn::functional::cross_entropy(model(input, sequences), labels).backward();
        adam.step();
      }
      EXPECT_TRUE(at::equal(model(input, sequences).argmax(1), labels));
    }
}

TEST(ClassifierTest, DropsOutInTrainingAndNotInEvaluation) {
  for (int site = 0; site < 3; ++site) {
    SCOPED_TRACE(site);
    const double rates[] = {site == 0 ? 0.4 : 0.0, site == 1 ? 0.4 : 0.0, site == 2 ? 0.4 : 0.0};
    Classifier model(arena_options().embedding_dropout(rates[0]).output_dropout(rates[1]).head_dropout(rates[2]));
    const at::Tensor tokens = torch::randint(kVocabulary, {3, 9});
    EXPECT_FALSE(at::equal(model(tokens), model(tokens)));
    model->eval();
    EXPECT_TRUE(identical(model(tokens), model(tokens)));
  }
}

TEST(ClassifierTest, CloneComputesTheSame) {
  for (const auto& [name, options] : classifier_cases()) {
    Classifier model(options);
    Classifier copy(std::dynamic_pointer_cast<ClassifierImpl>(model->clone()));
    const at::Tensor input =
        options.vocabulary() > 0 ? torch::randint(kVocabulary, {2, 9}) : torch::randn({2, 9, kFeatures});
    EXPECT_TRUE(identical(copy(input), model(input))) << name;
  }
}

TEST(ClassifierRefuses, WhatCannotBeRight) {
  Classifier model(arena_options());
  expect_refusal(
      [&] {
        model(at::zeros({1, kLongest + 1}, at::kLong));
      },
      {"PositionEmbedding::forward", "17", "18", "sinusoidal"});
  expect_refusal([&] { model(at::full({1, 2}, kVocabulary, at::kLong)); }, {"TokenEmbedding", "[0, 11)", "got 11"});
  expect_refusal([&] { model(at::full({1, 2}, -1, at::kLong)); }, {"TokenEmbedding", "[0, 11)", "got -1"});
  expect_refusal([&] { model(at::zeros({1, 2})); }, {"TokenEmbedding", "integers", "FeatureEmbedding"});
  expect_refusal([&] { model(at::zeros({4}, at::kLong)); }, {"plain batch (B, n)", "Sequences"});
  expect_refusal([] { Classifier{arena_options().features(2)}; }, {"vocabulary", "features", "not both"});
  expect_refusal([] { Classifier{arena_options().max_length(0)}; }, {"max_length", "sinusoidal"});
  expect_refusal([] { Classifier{arena_options().head_hidden(0)}; }, {"hidden", "linear head"});
  Classifier flat(time_series_options().position(Position::none));
  expect_refusal([&] { flat(at::zeros({1, kLongest + 1, kFeatures})); }, {"Pooling::forward", "17", "18", "mean"});
  expect_refusal([&] { flat(at::zeros({1, 2, kFeatures + 1})); }, {"FeatureEmbedding", "(B, n, 3)"});
}

TEST(PositionEmbeddingTest, CountsFromTheStartOfEverySequence) {
  const PackedBatch batch({3, 0, 5});
  PositionEmbedding learned(PositionEmbeddingOptions(4).max_length(5));
  const at::Tensor expected = at::cat({learned->weight.slice(0, 0, 3), learned->weight});
  EXPECT_TRUE(identical(learned(at::zeros({8, 4}), batch.sequences), expected));
}

TEST(PositionEmbeddingTest, HasTheSinusoidsOfItsDefinition) {
  for (const int64_t d : {4, 7}) {
    PositionEmbedding sinusoidal(PositionEmbeddingOptions(d).kind(Position::sinusoidal));
    const at::Tensor y = sinusoidal(at::zeros({3000, d}, at::kDouble), Sequences::dense(1, 3000, at::kCPU));
    for (const int64_t position : {0, 1, 2999})
      for (int64_t column = 0; column < d; ++column) {
        const double angle = static_cast<double>(position) /
                             std::pow(10000.0, static_cast<double>(column / 2 * 2) / static_cast<double>(d));
        EXPECT_NEAR(y[position][column].item<double>(), column % 2 == 0 ? std::sin(angle) : std::cos(angle), 1e-11);
      }
    EXPECT_EQ(sinusoidal->parameters().size(), 0u);
  }
}

TEST(PoolingTest, IsItsDefinitionAndZeroForEmptySequences) {
  const PackedBatch batch({3, 0, 5, 1});
  const at::Tensor x = Random(41).leaf({batch.rows, kWidth});
  std::vector<at::Tensor> first, mean, flat;
  for (int64_t b = 0; b < batch.count(); ++b) {
    const at::Tensor rows = batch.rows_of(x, b);
    const at::Tensor nothing = at::zeros({kWidth}, at::kDouble);
    first.push_back(rows.size(0) > 0 ? rows[0] : nothing);
    mean.push_back(rows.size(0) > 0 ? rows.mean(0) : nothing);
    flat.push_back(at::cat({rows, at::zeros({6 - rows.size(0), kWidth}, at::kDouble)}).view(-1));
  }
  const std::vector<std::pair<Pool, at::Tensor>> expected = {
      {Pool::first, at::stack(first)}, {Pool::mean, at::stack(mean)}, {Pool::flatten, at::stack(flat)}};
  for (const auto& [kind, pooled] : expected) {
    SCOPED_TRACE(to_string(kind));
    Pooling pooling(PoolingOptions(kWidth).kind(kind).max_length(6));
    expect_same_function({{"packed", pooling(x, batch.sequences)}}, {pooled}, {{"x", x}});
    expect_same_function({{"padded", pooling(padded(x, batch, 7, kNaN), padded_sequences(batch, 7))}}, {pooled},
                         {{"x", x}});
    EXPECT_TRUE(
        identical(pooling(at::zeros({0, kWidth}), PackedBatch({0, 0}).sequences), at::zeros({2, pooling->width()})));
  }
}

TEST(DualEncoderTest, ShowsTheHeadBothDocumentsInLunasOrder) {
  DualEncoder model = in_double(DualEncoder(DualEncoderOptions(arena_options())), 51);
  const PackedBatch batch_1(kMixedLengths), batch_2({2, 7, 1, 0});
  const at::Tensor one = packed_input(arena_options(), batch_1.rows, 52);
  const at::Tensor two = packed_input(arena_options(), batch_2.rows, 53);
  const at::Tensor a = model->backbone(one, batch_1.sequences), b = model->backbone(two, batch_2.sequences);
  const at::Tensor logits = model(one, batch_1.sequences, two, batch_2.sequences);
  EXPECT_EQ(logits.sizes(), at::IntArrayRef({4, kClasses}));
  expect_same_function({{"logits", logits}}, {model->head(at::cat({b, a}, 1))}, with_parameters({}, *model));
  // A head with its two halves exchanged sees the documents the other way round.
  {
    const torch::NoGradGuard no_grad;
    at::Tensor& weight = model->head->linear_1->weight;
    weight.copy_(at::cat({weight.slice(1, kWidth), weight.slice(1, 0, kWidth)}, 1));
  }
  EXPECT_TRUE(close(model(two, batch_2.sequences, one, batch_1.sequences), logits));
}

TEST(DualEncoderTest, OffersProductAndDifference) {
  const auto options = DualEncoderOptions(time_series_options().pooling(Pool::mean)).pair_features(PairFeatures::nli);
  DualEncoder model = in_double(DualEncoder(options), 54);
  const at::Tensor one = Random(55).normal({2, 4, kFeatures}), two = Random(56).normal({2, 9, kFeatures});
  const at::Tensor a = model->backbone(one), b = model->backbone(two);
  expect_same_function({{"logits", model(one, std::nullopt, two, std::nullopt)}},
                       {model->head(at::cat({a, b, a * b, a - b}, 1))}, with_parameters({}, *model));
  expect_refusal([&] { model(one, std::nullopt, two.slice(0, 0, 1), std::nullopt); },
                 {"DualEncoder::forward", "expected 2", "got 1"});
}

}  // namespace
}  // namespace dba::test

#include "train/training_step.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "dba/zoo.h"
#include "nn/symbol_embedding.h"
#include "support/small_sets.h"
#include "train/autocast_step.h"
#include "train/kernel_shares.h"

/// The step of a GPU as far as it can be proved without one: batches from data on the device, trailing rows, steps that
/// are recorded, numbers of the optimiser as tensors.
namespace dba::train {
namespace {

using testing_sets::SmallSet;

void expect_equal_batches(const Batch& got, const Batch& expected) {
  for (const auto& [own, theirs] :
       {std::pair(&got.sequences, &expected.sequences), std::pair(&got.second_sequences, &expected.second_sequences)}) {
    ASSERT_EQ(own->begin.defined(), theirs->begin.defined());
    if (own->begin.defined()) {
      EXPECT_TRUE(torch::equal(own->begin, theirs->begin));
      EXPECT_TRUE(torch::equal(own->end, theirs->end));
    }
    EXPECT_EQ(own->rows, theirs->rows);
    EXPECT_EQ(own->padded_length, theirs->padded_length);
    EXPECT_EQ(own->max_length, theirs->max_length);
    EXPECT_EQ(own->consecutive, theirs->consecutive);
  }
  for (const auto part :
       {&Batch::input, &Batch::positions, &Batch::second_input, &Batch::second_positions, &Batch::labels}) {
    ASSERT_EQ((got.*part).defined(), (expected.*part).defined());
    if ((got.*part).defined()) {
      EXPECT_TRUE(torch::equal(got.*part, expected.*part));
    }
  }
}

TEST(ResidentSets, LeaveOutWhatCollateLeavesOut) {
  data::TokeniserOptions options;
  options.leave_out = {'b', 'e', 'h', 'k', 'n', 'q', 't', 'w'};
  for (const auto kind : {data::Kind::tokens, data::Kind::pairs}) {
    const SmallSet small(kind, options);
    const ResidentSet resident(small.set(), nullptr, at::kCPU, Rows::exact);
    for (const auto& examples : small.batches()) {
      expect_equal_batches(resident.batch(examples), collate(small.set(), examples, nullptr));
    }
    EXPECT_LT(resident.layout(small.batches().front()).first.rows, 40 + 5 + 23);
  }
}

// The last batch of each list has sequences of one length.
TEST(ResidentSets, MakeTheBatchesThatCollateMakes) {
  for (const auto kind : {data::Kind::tokens, data::Kind::pairs, data::Kind::series}) {
    const SmallSet small(kind);
    const auto* const statistics = kind == data::Kind::series ? &small.set().channel_statistics() : nullptr;
    const ResidentSet resident(small.set(), statistics, at::kCPU, Rows::exact);
    for (const auto& examples : small.batches()) {
      expect_equal_batches(resident.batch(examples), collate(small.set(), examples, statistics));
    }
    EXPECT_EQ(resident.layout(small.batches().back()).first.equal, true);
    EXPECT_EQ(resident.layout(small.batches().front()).first.equal, false);
  }
}

TEST(ResidentSets, RoundRowsToFewLayouts) {
  const SmallSet small(data::Kind::tokens);
  const ResidentSet exact(small.set(), nullptr, at::kCPU, Rows::exact);
  const ResidentSet rounded(small.set(), nullptr, at::kCPU, Rows::rounded);
  for (const auto& examples : small.batches()) {
    const auto layout = rounded.layout(examples).first;
    const auto wanted = exact.layout(examples).first;
    if (wanted.equal) {
      EXPECT_EQ(layout, wanted);
      continue;
    }
    EXPECT_GE(layout.rows, wanted.rows);
    EXPECT_LT(layout.rows, wanted.rows + 64);
    EXPECT_EQ(layout.rows % 64, 0);
    EXPECT_GE(layout.longest, wanted.longest);
  }
}

TEST(ResidentSets, BelongOnTheDeviceAsTheConfigurationSays) {
  const SmallSet small(data::Kind::tokens);
  EXPECT_TRUE(belongs_on(at::kCPU, small.set(), "always"));
  EXPECT_FALSE(belongs_on(at::kCPU, small.set(), "never"));
  EXPECT_FALSE(belongs_on(at::kCPU, small.set(), "auto"));
}

/// A model with all that a step needs, always with the same first weights.
struct Training {
  explicit Training(const SmallSet& small, double dropout = 0.0) : plan(small.plan(dropout)) {
    // Adam would blow up the rounding of gradients that vanish in exact arithmetic.
    plan.config.optimiser.name = "sgd";
    torch::manual_seed(11);
    model.emplace(plan);
    optimiser = make_optimiser(plan.config.optimiser, parameters());
    step.emplace(plan.config, *model, *optimiser, window, at::Tensor(), first_bad, at::kCPU);
  }
  Parameters parameters() {
    Parameters all;
    for (const auto& parameter : model->module().named_parameters()) {
      all.emplace_back(parameter.key(), parameter.value());
    }
    return all;
  }
  void run(const ResidentSet& set, const std::vector<std::vector<std::size_t>>& batches, int rounds) {
    torch::manual_seed(5);
    std::int64_t update = 0;
    for (int round = 0; round < rounds; ++round) {
      for (const auto& batch : batches) {
        ++update;
        step->run(std::span(&batch, 1), set, update, 0.2 / static_cast<double>(update));
      }
    }
  }

  ModelPlan plan;
  std::optional<Model> model;
  std::unique_ptr<Optimiser> optimiser;
  Window window{at::kCPU};
  at::Tensor first_bad = torch::full({}, -1, at::kLong);
  std::optional<TrainingStep> step;
};

void expect_close_weights(Training& got, Training& expected, double tolerance) {
  const auto own = got.parameters(), theirs = expected.parameters();
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto error = (own[i].second - theirs[i].second).abs().max().item<double>();
    EXPECT_LE(error, tolerance) << own[i].first;
  }
}

TEST(TrailingRows, ChangeNeitherValuesNorGradients) {
  for (const auto kind : {data::Kind::tokens, data::Kind::pairs, data::Kind::series}) {
    const SmallSet small(kind);
    const ResidentSet exact(small.set(), nullptr, at::kCPU, Rows::exact);
    const ResidentSet rounded(small.set(), nullptr, at::kCPU, Rows::rounded);
    const auto& examples = small.batches().front();
    ASSERT_GT(rounded.layout(examples).first.rows, exact.layout(examples).first.rows);
    std::vector<std::vector<at::Tensor>> gradients;
    std::vector<at::Tensor> logits;
    for (const auto* set : {&exact, &rounded}) {
      Training training(small);
      logits.push_back(training.model->forward(set->batch(examples)));
      torch::nn::functional::cross_entropy(logits.back(), set->batch(examples).labels).backward();
      auto& all = gradients.emplace_back();
      for (const auto& [name, parameter] : training.parameters()) {
        all.push_back(parameter.grad());
      }
    }
    EXPECT_LT((logits[0] - logits[1]).abs().max().item<double>(), 1e-5);
    for (std::size_t i = 0; i < gradients[0].size(); ++i) {
      EXPECT_LT((gradients[0][i] - gradients[1][i]).abs().max().item<double>(), 1e-5) << i;
    }
  }
}

// Short sequences are rounded for every attention.
TEST(TrailingRows, ChangeNoAttentionOfTheZoo) {
  const SmallSet small(data::Kind::series);
  const ResidentSet exact(small.set(), nullptr, at::kCPU, Rows::exact);
  const ResidentSet rounded(small.set(), nullptr, at::kCPU, Rows::rounded);
  const auto& examples = small.batches().front();
  for (const auto& member : zoo::members()) {
    SCOPED_TRACE(member.name);
    auto plan = small.plan(0.0);
    plan.config.model.method = member.name;
    plan.config.model.norm = member.name == "softmax" ? "batch" : "layer";
    std::vector<at::Tensor> logits, gradients;
    for (const auto* set : {&exact, &rounded}) {
      torch::manual_seed(11);
      Model model(plan);
      logits.push_back(model.forward(set->batch(examples)));
      torch::nn::functional::cross_entropy(logits.back(), set->batch(examples).labels).backward();
      std::vector<at::Tensor> flat;
      for (const auto& parameter : model.module().parameters()) {
        flat.push_back(parameter.grad().defined() ? parameter.grad().flatten() : torch::zeros({parameter.numel()}));
      }
      gradients.push_back(torch::cat(flat));
    }
    EXPECT_LT((logits[0] - logits[1]).abs().max().item<double>(), 1e-5);
    EXPECT_LT((gradients[0] - gradients[1]).abs().max().item<double>(), 1e-5);
  }
}

TEST(Autocast, KeepsTheStepCloseToFloat32) {
  const SmallSet small(data::Kind::tokens);
  const ResidentSet set(small.set(), nullptr, at::kCPU, Rows::exact);
  for (const auto& examples : small.batches()) {
    std::vector<std::vector<at::Tensor>> results;
    for (const bool narrow : {false, true}) {
      Training training(small);
      const auto batch = set.batch(examples);
      const AutocastStep autocast(at::kCPU, narrow);
      auto& all = results.emplace_back(std::vector{training.model->forward(batch)});
      EXPECT_EQ(all[0].scalar_type(), at::kFloat);
      torch::nn::functional::cross_entropy(all[0], batch.labels).backward();
      double norm = 0;
      for (const auto& [name, parameter] : training.parameters()) {
        EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat) << name;
        norm += parameter.grad().square().sum().item<double>();
      }
      all.push_back(torch::tensor(std::sqrt(norm)));
    }
    EXPECT_LT((results[0][0] - results[1][0]).abs().max().item<double>(), 0.03);
    EXPECT_FALSE(torch::equal(results[0][0], results[1][0]));
    EXPECT_NEAR(results[0][1].item<double>() / results[1][1].item<double>(), 1.0, 0.03);
  }
}

/// Remembers the work and does it when asked: a graph without a GPU.
class Remembering : public StepRecorder {
 public:
  std::shared_ptr<void> own_stream() override {
    return nullptr;
  }
  Work record(const Work& work) override {
    TORCH_CHECK(!refuses, "this step cannot be recorded");
    recordings += 1;
    return work;
  }
  bool refuses = false;
  int recordings = 0;
};

TEST(RecordedSteps, AreUpdatesLikeOthers) {
  data::TokeniserOptions options;
  options.leave_out = {'b', 'k'};
  const SmallSet small(data::Kind::tokens, options);
  const ResidentSet set(small.set(), nullptr, at::kCPU, Rows::exact);
  Training plain(small, 0.2), recorded(small, 0.2);
  Remembering recorder;
  recorded.step->record_with(recorder, [](const std::string&) { FAIL(); });
  plain.run(set, small.batches(), 4);
  recorded.run(set, small.batches(), 4);
  // Each layout runs once before it is recorded.
  EXPECT_EQ(recorder.recordings, static_cast<int>(small.batches().size()));
  EXPECT_EQ(recorded.step->repeated(), 3 * recorder.recordings);
  expect_close_weights(recorded, plain, 2e-6);
  EXPECT_NEAR(recorded.window.loss.item<double>(), plain.window.loss.item<double>(), 1e-4);
  EXPECT_EQ(recorded.window.examples.item<double>(), plain.window.examples.item<double>());
  EXPECT_EQ(recorded.optimiser->updates(), plain.optimiser->updates());
}

TEST(RecordedSteps, RunOneByOneWhereRecordingFails) {
  const SmallSet small(data::Kind::tokens);
  const ResidentSet set(small.set(), nullptr, at::kCPU, Rows::exact);
  Training plain(small), refused(small);
  Remembering recorder;
  recorder.refuses = true;
  std::vector<std::string> reasons;
  refused.step->record_with(recorder, [&](const std::string& reason) { reasons.push_back(reason); });
  plain.run(set, small.batches(), 3);
  refused.run(set, small.batches(), 3);
  EXPECT_EQ(refused.step->repeated(), 0);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_NE(reasons[0].find("this step cannot be recorded"), std::string::npos);
  expect_close_weights(refused, plain, 2e-6);
}

TEST(TrainingStep, RemembersTheFirstLossThatIsNotFinite) {
  const SmallSet small(data::Kind::tokens);
  const ResidentSet set(small.set(), nullptr, at::kCPU, Rows::exact);
  Training training(small);
  training.run(set, small.batches(), 1);
  EXPECT_EQ(training.first_bad.item<std::int64_t>(), -1);
  {
    const torch::NoGradGuard no_grad;
    for (auto& [name, parameter] : training.parameters()) {
      parameter.fill_(std::numeric_limits<float>::quiet_NaN());
    }
  }
  training.step->run(std::span(small.batches()).first(1), set, 41, 0.1);
  training.step->run(std::span(small.batches()).first(1), set, 42, 0.1);
  EXPECT_EQ(training.first_bad.item<std::int64_t>(), 41);
}

TEST(KernelShares, TellPartsByTheNamesOfKernels) {
  const auto text = kernel_table({{"void dba::ops::cuda::hopper::compress_kernel<64>(Arguments)", 0.004},
                                  {"void dba::ops::cuda::forward_kernel<float>(ResidualForward)", 0.002},
                                  {"nvjet_tst_128x64", 0.001},
                                  {"void at::native::vectorized_elementwise_kernel<4>", 0.001}},
                                 2);
  EXPECT_NE(text.find("2.0000 ms   50.0 %  attention passes"), std::string::npos) << text;
  EXPECT_NE(text.find("1.0000 ms   25.0 %  residual, norm, activation"), std::string::npos) << text;
  EXPECT_NE(text.find("0.5000 ms   12.5 %  products"), std::string::npos) << text;
  EXPECT_LT(text.find("residual, norm"), text.find("products"));
}

TEST(SumsBySymbol, AreTheGradientOfAnEmbedding) {
  constexpr std::int64_t kRows = 4096 + 77, kVocabulary = 37, kWidth = 8;
  torch::manual_seed(3);
  const auto symbols = torch::randint(kVocabulary, {kRows}).clamp_max(30);
  const auto rows = torch::randn({kRows, kWidth}).to(at::kBFloat16);
  const auto expected = torch::zeros({kVocabulary, kWidth}, at::kDouble).index_add_(0, symbols, rows.to(at::kDouble));
  const auto got = dba::sums_by_symbol(rows, symbols, kVocabulary);
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  EXPECT_TRUE(torch::allclose(got.to(at::kDouble), expected, /*rtol=*/1e-6, /*atol=*/1e-5));
}

}  // namespace
}  // namespace dba::train

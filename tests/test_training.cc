#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <numeric>
#include <set>

#include "dba/train/batches.h"
#include "dba/train/metrics.h"
#include "dba/train/optimiser.h"
#include "dba/train/schedule.h"
#include "support/small_sets.h"
#include "train/autocast_step.h"
#include "train/prefetch.h"
#include "train/protocol.h"

namespace dba::train {
namespace {

TEST(Schedules, GoThroughTheirFixedPoints) {
  config::ScheduleConfig schedule;
  schedule.warmup = 10;
  schedule.warmup_from = 0.2;
  const auto at = [&](const std::string& name, std::int64_t update) {
    schedule.name = name;
    return learning_rate(schedule, 1.0, update, 110);
  };
  EXPECT_DOUBLE_EQ(at("constant", 5), 0.6);
  EXPECT_DOUBLE_EQ(at("constant", 100), 1.0);
  EXPECT_DOUBLE_EQ(at("inverse_sqrt", 10), 1.0);
  EXPECT_DOUBLE_EQ(at("inverse_sqrt", 40), 0.5);
  schedule.final_ratio = 0.1;
  EXPECT_DOUBLE_EQ(at("cosine", 10), 1.0);
  EXPECT_NEAR(at("cosine", 60), 0.55, 1e-12);
  EXPECT_NEAR(at("cosine", 110), 0.1, 1e-12);
  EXPECT_NEAR(at("linear", 60), 0.55, 1e-12);
  EXPECT_NEAR(at("linear", 110), 0.1, 1e-12);
  schedule.milestones = {20, 30};
  schedule.factor = 0.5;
  EXPECT_DOUBLE_EQ(at("steps", 19), 1.0);
  EXPECT_DOUBLE_EQ(at("steps", 20), 0.5);
  EXPECT_DOUBLE_EQ(at("steps", 30), 0.25);
}

TEST(Schedules, AWarmUpIsAtMostAQuarterOfARunCountedInEpochs) {
  config::ScheduleConfig schedule;
  schedule.warmup = 100;
  EXPECT_EQ(fitted(schedule, 1000).warmup, 100);
  EXPECT_EQ(fitted(schedule, 100).warmup, 25);
  EXPECT_EQ(fitted(schedule, 2).warmup, 1);
  schedule.warmup = 0;
  EXPECT_EQ(fitted(schedule, 2), schedule);
}

struct Plan {
  std::vector<std::int64_t> lengths;
  std::vector<std::size_t> examples;
  config::BatchConfig batch;

  Plan() : lengths(1000), examples(1000) {
    std::iota(examples.begin(), examples.end(), std::size_t{0});
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      lengths[i] = static_cast<std::int64_t>(i * 37 % 101);
    }
    batch.size = 16;
    batch.bucket = 10;
  }
  auto epoch(std::int64_t number, std::uint64_t seed = 1) const {
    return plan_epoch(examples, lengths, batch, seed, number);
  }
};

TEST(EpochPlan, HoldsEveryExampleOnceAndFollowsSeedAndEpoch) {
  const Plan plan;
  const auto batches = plan.epoch(0);
  std::multiset<std::size_t> seen;
  for (const auto& batch : batches) {
    EXPECT_LE(batch.size(), 16u);
    seen.insert(batch.begin(), batch.end());
  }
  EXPECT_EQ(seen, std::multiset<std::size_t>(plan.examples.begin(), plan.examples.end()));
  EXPECT_EQ(plan.epoch(0), batches);
  EXPECT_NE(plan.epoch(1), batches);
  EXPECT_NE(plan.epoch(0, 2), batches);
}

TEST(EpochPlan, SortsByLengthInsideBucketsAndKeepsTheTokenBudget) {
  Plan plan;
  plan.batch.tokens = 600;
  double spread = 0, batches = 0;
  for (const auto& batch : plan.epoch(3)) {
    std::int64_t tokens = 0, longest = 0, shortest = 1000;
    for (const auto example : batch) {
      tokens += plan.lengths[example];
      longest = std::max(longest, plan.lengths[example]);
      shortest = std::min(shortest, plan.lengths[example]);
    }
    EXPECT_TRUE(tokens <= 600 || batch.size() == 1);
    spread += static_cast<double>(longest - shortest);
    ++batches;
  }
  EXPECT_LT(spread / batches, 30.0);  // unsorted it is about 85
}

TEST(EvaluationPlan, GoesFromTheShortestToTheLongestInPlacesThatFit) {
  const Plan plan;
  constexpr std::int64_t kPlaces = 640;
  std::multiset<std::size_t> seen;
  std::int64_t longest_before = 0, taken = 0, tokens = 0;
  for (const auto& batch : plan_by_length(plan.examples, plan.lengths, kPlaces)) {
    ASSERT_FALSE(batch.empty());
    std::int64_t longest = 0;
    for (const auto example : batch) {
      EXPECT_GE(plan.lengths[example], longest_before);
      longest = std::max(longest, plan.lengths[example]);
      tokens += plan.lengths[example];
    }
    EXPECT_LE(std::ssize(batch) * longest, kPlaces);
    taken += std::ssize(batch) * longest;
    longest_before = longest;
    seen.insert(batch.begin(), batch.end());
  }
  EXPECT_EQ(seen, std::multiset<std::size_t>(plan.examples.begin(), plan.examples.end()));
  EXPECT_LT(static_cast<double>(taken), 1.05 * static_cast<double>(tokens));  // in order it is about 1.9 times
  // One that does not fit comes by itself, and no examples make no batches.
  EXPECT_EQ(plan_by_length(std::vector<std::size_t>{0, 1}, std::vector<std::int64_t>{9, 8}, 3),
            (std::vector<std::vector<std::size_t>>{{1}, {0}}));
  EXPECT_TRUE(plan_by_length({}, {}, 3).empty());
}

TEST(MetricCounter, CountsAccuracyF1AndConfusion) {
  MetricCounter counter(3, at::kCPU);
  // true 0 0 1 1 2, predicted 0 1 1 1 0
  const auto logits = torch::zeros({5, 3});
  const std::vector<std::int64_t> predicted{0, 1, 1, 1, 0};
  for (std::int64_t i = 0; i < 5; ++i) {
    logits[i][predicted[static_cast<std::size_t>(i)]] = 2.0;
  }
  counter.add(logits.slice(0, 0, 2), torch::tensor({0, 0}));
  counter.add(logits.slice(0, 2, 5), torch::tensor({1, 1, 2}));
  const auto metrics = counter.result();
  EXPECT_EQ(metrics.confusion, (std::vector<std::vector<std::int64_t>>{{1, 1, 0}, {0, 2, 0}, {1, 0, 0}}));
  EXPECT_DOUBLE_EQ(metrics.accuracy, 0.6);
  EXPECT_NEAR(metrics.macro_f1, (0.5 + 0.8 + 0.0) / 3, 1e-12);
  const double right = std::log(std::exp(2.0) + 2) - 2, wrong = std::log(std::exp(2.0) + 2);
  EXPECT_NEAR(metrics.loss, (3 * right + 2 * wrong) / 5, 1e-6);
}

TEST(Prefetching, HandsOutBatchesInOrderAndPassesErrorsOn) {
  Prefetcher prefetcher(2, 7, 2, [](std::size_t i) {
    if (i == 6) {
      throw std::runtime_error("number six");
    }
    Batch batch;
    batch.labels = torch::full({1}, static_cast<std::int64_t>(i));
    return batch;
  });
  for (std::int64_t i = 2; i < 6; ++i) {
    EXPECT_EQ(prefetcher.next()->labels.item<std::int64_t>(), i);
  }
  EXPECT_THROW(prefetcher.next(), std::runtime_error);
}

TEST(Prefetching, StopsWhenNobodyTakesItsBatches) {
  const Prefetcher prefetcher(0, 1000, 1, [](std::size_t) { return Batch(); });
}

Metrics with_accuracy(double accuracy) {
  Metrics metrics;
  metrics.accuracy = accuracy;
  return metrics;
}

/// Five evaluations with these accuracies, and what the report says of the protocols.
nlohmann::ordered_json judged(const config::TrainConfig& config, Position& position) {
  constexpr double kValidation[] = {0.5, 0.7, 0.6, 0.7, 0.4};
  constexpr double kTest[] = {0.3, 0.2, 0.9, 0.8, 0.1};
  const Protocol protocol(config);
  for (int i = 0; i < 5; ++i) {
    position.update += 10;
    if (protocol.watches_test()) {
      protocol.remember_best_test(with_accuracy(kTest[i]), position);
    }
    protocol.takes(with_accuracy(config.protocol == "as_published" ? kTest[i] : kValidation[i]), position);
  }
  return protocol.figures(position, with_accuracy(kTest[position.best_update / 10 - 1]),
                          [&] { return with_accuracy(kTest[4]); });
}

TEST(Protocols, EachHaveTheirOwnModelAndTellWhatTheOthersWouldHave) {
  const auto updates = [](const nlohmann::ordered_json& figures) {
    std::map<std::string, std::int64_t> all;
    for (const auto& [protocol, metrics] : figures.items()) {
      all[protocol] = metrics.at("update").get<std::int64_t>();
    }
    return all;
  };
  using Updates = std::map<std::string, std::int64_t>;
  config::TrainConfig config;
  for (const bool watch : {false, true}) {
    config.train.watch_test = watch;
    for (const auto& [name, alone, watched] : {
             std::tuple("honest", Updates{{"honest", 20}},
                        Updates{{"honest", 20}, {"last_epoch", 50}, {"as_published", 30}}),
             std::tuple("last_epoch", Updates{{"last_epoch", 50}}, Updates{{"last_epoch", 50}, {"as_published", 30}}),
             std::tuple("as_published", Updates{{"as_published", 30}},
                        Updates{{"as_published", 30}, {"last_epoch", 50}}),
         }) {
      config.protocol = name;
      Position position;
      EXPECT_EQ(updates(judged(config, position)), watch ? watched : alone) << name;
    }
  }
}

TEST(Protocols, LoseTheirPatienceAfterEvaluationsThatAreNoBetter) {
  config::TrainConfig config;
  config.train.watch_test = true;
  for (const std::int64_t patience : {0, 3, 4}) {
    config.train.patience = patience;
    Position position;
    const auto figures = judged(config, position);
    EXPECT_EQ(Protocol(config).out_of_patience(position), patience == 3);
    EXPECT_EQ(figures.contains("last_epoch"), patience != 3);  // a run that patience ended has none
  }
}

TEST(Checkpoints, BringBackWhereARunStands) {
  const testing_sets::SmallSet small(data::Kind::tokens);
  Model model(small.plan(0.0));
  config::OptimiserConfig config;
  config.name = "sgd";
  const auto optimiser = make_optimiser(config, {});
  Window window(at::kCPU);
  const bytes::ScratchFolder folder;
  run::CheckpointStore store(folder / "checkpoints");
  Position saved;
  saved.update = 7;
  saved.epoch = 2;
  saved.batch = 3;
  saved.best = 0.25;
  saved.best_update = 5;
  saved.stale = 1;
  saved.evaluated = 6;
  saved.best_test = R"({"update":4})";
  saved.repeated = 5;
  saved.seconds = 1.5;
  saved.waited = 0.5;
  saved.evaluating = 0.25;
  saved.saving = 0.125;
  save_checkpoint(store, {model, *optimiser, saved, window, at::kCPU});
  Position found;
  const auto complain = [](const std::string& text) { ADD_FAILURE() << text; };
  load_checkpoint(store.latest(complain).value(), {model, *optimiser, found, window, at::kCPU}, complain);
  const auto all = [](const Position& p) {
    return std::tuple(p.update, p.epoch, p.batch, p.best, p.best_update, p.stale, p.evaluated, p.best_test, p.repeated,
                      p.seconds, p.waited, p.evaluating, p.saving);
  };
  EXPECT_EQ(all(found), all(saved));
}

// Without the guard the second step would still multiply by the cast of the old weight.
TEST(Autocast, ForgetsCastWeightsAfterAStep) {
  auto weight = torch::ones({2, 2}).requires_grad_();
  const auto x = torch::ones({2, 2});
  const auto step = [&] {
    const AutocastStep autocast(at::kCPU, true);
    return torch::matmul(x, weight);
  };
  const auto first = step();
  EXPECT_EQ(first.scalar_type(), at::kBFloat16);
  {
    const torch::NoGradGuard no_grad;
    weight.fill_(3.0);
  }
  EXPECT_EQ(step()[0][0].item<double>(), 6.0);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

}  // namespace
}  // namespace dba::train

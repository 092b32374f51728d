// The configurations that lie in configs/, and what `dba reproduce lra` makes of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "dba/config/config_file.h"
#include "reproduce/runner.h"
#include "reproduce/shortened.h"
#include "reproduce/table.h"
#include "scratch_folder.h"

namespace dba::reproduce {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::filesystem::path kConfigs = std::filesystem::path(__FILE__).parent_path() / "../../configs";

config::TrainConfig configuration_of(const Run& run) {
  auto config = config::load_config(kConfigs / "lra" / run.config);
  for (const auto& [key, name] : run.data)
    config::apply_override(config, key + "=" + name);
  for (const auto& assignment : run.overrides)
    config::apply_override(config, assignment);
  return config;
}

Result result_of(const std::string& task, const std::string& method, const std::string& variant, double accuracy,
                 std::int64_t training_examples) {
  Result result;
  result.task = task;
  result.method = method;
  result.variant = variant;
  result.accuracy = {{"honest", accuracy}};
  result.training_examples = training_examples;
  return result;
}

TEST(Recipes, EveryConfigurationIsReadAndHasNoContradiction) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kConfigs)) {
    if (entry.path().extension() != ".yaml")
      continue;
    SCOPED_TRACE(entry.path().string());
    ++files;
    EXPECT_THAT(config::contradictions(config::load_config(entry.path())), ElementsAre());
  }
  EXPECT_GE(files, 16u);
}

TEST(Recipes, EveryRunOfLraHasAConfigurationWithoutContradiction) {
  const auto experiment = lra();
  Selection everything;
  for (const auto& method : experiment.methods)
    everything.methods.push_back(method.name);
  everything.seeds = {1};
  const auto runs = select_runs(experiment, everything);
  EXPECT_EQ(runs.size(), 5 * experiment.methods.size());
  for (const auto& run : runs) {
    SCOPED_TRACE(run.name());
    EXPECT_THAT(config::contradictions(configuration_of(run)), ElementsAre());
    const auto config = config::load_config(kConfigs / "lra" / run.config);
    EXPECT_THAT(config::contradictions(configuration_of(shortened(run, 20, config))), ElementsAre());
  }
}

TEST(Recipes, MethodsOfALraTaskDifferInTheAttentionAlone) {
  const auto experiment = lra();
  for (const auto& task : experiment.tasks) {
    const auto dba = config::load_config(kConfigs / "lra" / (task.name + "_dba.yaml"));
    EXPECT_EQ(dba.model.method, "dba");
    EXPECT_EQ(dba.model.form, "paper");
    for (const char* method : {"dba_released", "softmax"}) {
      SCOPED_TRACE(task.name + " " + method);
      auto other = config::load_config(kConfigs / "lra" / (task.name + "_" + method + ".yaml"));
      EXPECT_NE(other, dba);
      other.model.method = dba.model.method;
      other.model.form = dba.model.form;
      other.model.z_update = dba.model.z_update;
      other.expect = dba.expect;  // measured for each by itself
      EXPECT_EQ(other, dba);
    }
  }
}

TEST(Recipes, LraMakesThreeMethodsUnlessOthersAreNamed) {
  const auto methods_of = [](const Selection& selection) {
    std::vector<std::string> methods;
    for (const auto& run : select_runs(lra(), selection))
      methods.push_back(run.method);
    return methods;
  };
  EXPECT_THAT(methods_of({{"image"}, {}, {}, {1}}), ElementsAre("dba", "dba_released", "softmax"));
  EXPECT_THAT(methods_of({{"image"}, {"performer", "dba_full_map"}, {}, {1}}),
              ElementsAre("dba_full_map", "performer"));
  const auto run = select_runs(lra(), {{"image"}, {"performer"}, {}, {3}}).front();
  EXPECT_EQ(run.name(), "image-performer-seed3");
  auto config = configuration_of(run);
  EXPECT_EQ(config.model.method, "performer");
  EXPECT_FALSE(
      configuration_of(select_runs(lra(), {{"image"}, {"dba_full_map"}, {}, {1}}).front()).model.compress_length);
  EXPECT_FALSE(
      configuration_of(select_runs(lra(), {{"image"}, {"dba_full_width"}, {}, {1}}).front()).model.compress_width);
}

// The paper prints the mean of the five tasks beside them.
TEST(Recipes, FiguresOfThePaperHaveThePrintedMeans) {
  const auto experiment = lra();
  const auto mean = [&](const std::string& method) {
    double sum = 0;
    for (const auto& task : experiment.tasks)
      sum += paper_figure(experiment, task.name, method)->accuracy;
    return std::round(20 * sum) / 100;
  };
  EXPECT_DOUBLE_EQ(mean("dba"), 62.21);
  EXPECT_DOUBLE_EQ(mean("softmax"), 58.57);
  EXPECT_DOUBLE_EQ(mean("luna"), 61.46);
  EXPECT_DOUBLE_EQ(mean("dba_full_map"), 59.75);
  EXPECT_DOUBLE_EQ(mean("dba_full_width"), 60.95);
}

TEST(Recipes, AShortenedRunDoesNotWatchTheTestSet) {
  const auto run = select_runs(lra(), {{"text"}, {"linear"}, {}, {1}}).front();
  const auto config = config::load_config(kConfigs / "lra" / run.config);
  EXPECT_TRUE(configuration_of(run).train.watch_test);
  EXPECT_FALSE(configuration_of(shortened(run, 2000, config)).train.watch_test)
      << "40 times 25,000 reviews beside 64,000 to train on";
}

TEST(Recipes, AShortenedRunScalesItsScheduleAndSaysSo) {
  config::TrainConfig config;
  config.train.updates = 1000;
  config.train.evaluate_every = 100;
  config.train.log_every = 50;
  config.schedule.warmup = 200;
  reproduce::Run run{"image", "dba", "", 1, "", {"a.b=c"}, {}};
  const auto tenth = shortened(run, 100, config);
  EXPECT_EQ(tenth.name(), "image-dba-updates100-seed1");
  EXPECT_THAT(tenth.overrides, AllOf(Contains("a.b=c"), Contains("train.updates=100"), Contains("schedule.warmup=20"),
                                     Contains("train.evaluate_every=10"), Contains("train.log_every=5")));
  EXPECT_THAT(shortened(run, 2, config).overrides,
              AllOf(Contains("schedule.warmup=1"), Contains("train.evaluate_every=1"), Contains("train.log_every=1")));
  run.variant = "held_out";
  const auto parts = parse_shortened(shortened(run, 7, config).variant);
  ASSERT_TRUE(parts);
  EXPECT_EQ(parts->of, "held_out");
  EXPECT_EQ(parts->updates, 7);
  for (const char* variant : {"", "whole", "updates", "updates7x", "updates7-late"})
    EXPECT_FALSE(parse_shortened(variant)) << variant;
}

TEST(Recipes, ThePageMixesNeitherShortenedRunsNorOtherData) {
  const std::vector<Result> results = {
      result_of("image", "dba", "", 0.4651, 45'000), result_of("image", "dba", "", 0.4751, 45'000),
      result_of("image", "dba", "updates20", 0.11, 45'000), result_of("retrieval", "dba", "", 0.61, 3'332),
      result_of("pathfinder", "softmax", "", 0.55, 1'000)};
  const auto page = results_page(lra(), results);
  EXPECT_THAT(page, HasSubstr("| Image | here | 47.01 ± 0.71 (2) |"));
  EXPECT_THAT(page, HasSubstr("| | paper | 46.51 ± 0.50 | 42.44 |"));
  EXPECT_THAT(page, HasSubstr("| Retrieval (SciSumm stand-in, 3332 training examples: not AAN) | here | 61.00 (1) |"));
  EXPECT_THAT(page, HasSubstr("| Pathfinder (1000 training examples instead of 160000) | here | – | 55.00 (1) |"));
  EXPECT_THAT(page, Not(HasSubstr("80.64")));
  const auto shortened = page.find("Shortened to 20 updates");
  ASSERT_NE(shortened, std::string::npos);
  EXPECT_THAT(page.substr(0, shortened), Not(HasSubstr("11.00")));
  EXPECT_THAT(page.substr(shortened), AllOf(HasSubstr("| Image | here | 11.00 (1) |"), Not(HasSubstr("46.51"))));
}

TEST(Recipes, DataAreTakenInAnyKnownLayoutAndCachesFirst) {
  const bytes::ScratchFolder folder;
  const Places places{folder.path(), kConfigs / "lra", folder / "runs", folder / "results"};
  const auto run = select_runs(lra(), {{"image"}, {"dba"}, {}, {1}}).front();
  const auto make = [&](const std::string& name) {
    std::filesystem::create_directories((folder / name).parent_path());
    std::ofstream(folder / name) << "data";
  };
  EXPECT_EQ(state_of(run, places), State::no_data);
  EXPECT_THAT(missing_data(run, places),
              ElementsAre(folder / "cifar10_gray_train.bin", folder / "cifar10_gray_train.bin",
                          folder / "cifar10_gray_test.bin"));
  make("cifar-10-batches-bin/test_batch.bin");
  EXPECT_THAT(train_words(run, places, {}),
              AllOf(Contains("data.train=" + (folder / "cifar-10-batches-bin@0-90%").string()),
                    Contains("data.test=" + (folder / "cifar-10-batches-bin/test_batch.bin").string())));
  make("cifar10_gray_train.bin");
  make("image/validation.cache");
  EXPECT_THAT(train_words(run, places, {}),
              AllOf(Contains("data.train=" + (folder / "cifar10_gray_train.bin@0-90%").string()),
                    Contains("data.validation=" + (folder / "image/validation.cache").string()),
                    Contains("data.test=" + (folder / "cifar-10-batches-bin/test_batch.bin").string())));
  EXPECT_EQ(state_of(run, places), State::fresh);
}

TEST(Recipes, WithoutAGpuRunsTakeFloat32) {
  const bytes::ScratchFolder folder;
  const Places places{folder.path(), kConfigs / "lra", folder / "runs", folder / "results"};
  const auto run = select_runs(lra(), {{"image"}, {"dba"}, {}, {1}}).front();
  RunnerOptions options;
  EXPECT_THAT(train_words(run, places, options), Not(Contains("precision=float32")));
  options.bfloat16 = false;
  options.overrides = {"train.updates=5"};
  EXPECT_THAT(train_words(run, places, options), AllOf(Contains("precision=float32"), Contains("train.updates=5")));
}

}  // namespace
}  // namespace dba::reproduce

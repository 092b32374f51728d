// `dba reproduce`: which runs there are, how they are made and resumed, what is kept of them and what the page says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "dba/bytes/errors.h"
#include "dba/config/config_file.h"
#include "reproduce/result.h"
#include "reproduce/runner.h"
#include "reproduce/table.h"
#include "scratch_folder.h"

namespace dba::reproduce {
namespace {

using bytes::ScratchFolder;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;
using testing::UnorderedElementsAre;

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Two tasks and two methods, made by a shell script that behaves like `dba train`.
struct Small {
  ScratchFolder folder;
  Places places{folder / "data", folder / "configs", folder / "runs", folder / "results"};
  Experiment experiment;
  RunnerOptions options;

  /// `does`: what the script does once it knows $folder and $words.
  explicit Small(const std::string& does) {
    experiment.name = "small";
    experiment.title = "Small";
    experiment.task_word = "task";
    experiment.data_help = "two files";
    experiment.tasks = {{"apples", "Apples"}, {"pears", "Pears"}};
    experiment.methods = {{"dba", "DBA", "dba"}, {"softmax", "softmax", "transformer"}};
    experiment.seeds = {1};
    experiment.paper = {{"apples", "dba", 91.5, 0.25}, {"apples", "transformer", 90.0, {}}, {"pears", "dba", 70.0, {}}};
    experiment.sections = {{"", "honest", "Honest", "Chosen on validation.", false},
                           {"", "as_published", "As published", "Chosen on the test set.", true}};
    experiment.run = [](const Task& task, const Method& method, const std::string& variant, std::int64_t seed) {
      return Run{task.name,
                 method.name,
                 variant,
                 seed,
                 "one.yaml",
                 {"model.method=" + method.name},
                 {{"data.train", task.name + ".ts"}}};
    };
    write(folder / "data/apples.ts", "");
    write(folder / "data/pears.ts", "");
    write(folder / "configs/one.yaml", "seed: 7\n");
    write(folder / "program.sh",
          "#!/bin/sh\n"
          "words=\"$*\"\n"
          "while [ $# -gt 0 ]; do case $1 in --run|--resume) folder=$2;; --seeds) seeds=$2;; esac; shift; done\n"
          "mkdir -p $folder/checkpoints/step-00000001; echo \"$words\" >> $folder/words\n"
          "echo 'seed: 1' > $folder/config.yaml\n"
          "finish() {\n"
          "  echo '{\"step\": 1, \"part\": \"validation\", \"loss\": 0.123456, \"accuracy\": 0.5}' > "
          "$folder/metrics.jsonl\n"
          "  echo '{\"protocol\": \"honest\", \"commit\": \"abc\", \"version\": \"0\", \"torch\": \"2\", \"device\": "
          "\"cpu\", \"threads\": 1, \"precision\": \"float32\", \"seconds\": 3, \"updates\": 1, \"best_update\": 1, "
          "\"parameters\": 9, \"training_examples\": 5, \"model_chosen_on\": \"x\", \"protocols\": {\"honest\": "
          "{\"update\": 1, \"accuracy\": 0.5}, \"as_published\": {\"update\": 1, \"accuracy\": 0.75}}}' > "
          "$folder/report.json\n"
          "}\n" +
              does + "\n");
    ::chmod((folder / "program.sh").c_str(), 0755);
    options.program = (folder / "program.sh").string();
    options.jobs = 2;
    options.quiet = true;
  }

  std::vector<Run> runs(const Selection& selection = {}) const {
    return select_runs(experiment, selection);
  }
  Outcome make() const {
    return make_missing(experiment, runs(), places, options);
  }
  std::string words(const std::string& run) const {
    return text_of(folder / "runs" / run / "words");
  }
};

TEST(ReproduceRuns, UnknownNamesAreToldWithTheNearestOne) {
  const Small small("");
  EXPECT_THAT(
      [&] {
        small.runs({{"apple"}, {}, {}, {}});
      },
      ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("no task \"apple\""), HasSubstr("apples?"))));
  EXPECT_THAT(
      [&] {
        small.runs({{}, {"softmx"}, {}, {}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("did you mean softmax?")));
  EXPECT_THAT(
      [] {
        select_runs(uea(), {{"JapaneseVowel"}, {}, {}, {}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("did you mean JapaneseVowels?")));
  EXPECT_THAT(
      [] {
        select_runs(uea(), {{}, {"dba"}, {}, {}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("did you mean dba_paper?")));
}

TEST(ReproduceRuns, OfUeaHaveConfigurationsThatMakeSense) {
  const auto configs = std::filesystem::path(__FILE__).parent_path() / "../../configs/uea";
  const auto runs = select_runs(uea(), {{}, {}, {}, {1}});
  EXPECT_EQ(runs.size(), 16u * 8u * 2u);
  for (const auto& run : runs) {
    SCOPED_TRACE(run.name());
    auto config = config::load_config(configs / run.config);
    for (const std::string& assignment : run.overrides)
      config::apply_override(config, assignment);
    EXPECT_THAT(config::contradictions(config), ElementsAre());
    EXPECT_EQ(config.model.norm, run.method == "softmax" ? "batch" : "layer");
    EXPECT_EQ(config.model.form, run.method == "dba_paper" ? "paper" : "released");
    EXPECT_EQ(config.protocol, run.variant == "whole" ? "as_published" : "honest");
    EXPECT_TRUE(config.train.watch_test);
    EXPECT_EQ(config.data.train, "data/uea/" + run.data.at(0).second);
  }
}

TEST(ReproduceRuns, TheFiguresOfThePaperHaveThePrintedMeans) {
  const Experiment experiment = uea();
  for (const auto& [method, mean] :
       {std::pair("transformer", 71.9), {"linformer", 71.8}, {"flowformer", 73.0}, {"dba", 73.9}}) {
    double sum = 0;
    for (const auto& figure : experiment.paper)
      sum += figure.method == method ? figure.accuracy : 0.0;
    EXPECT_NEAR(sum / 10, mean, 0.051) << method;
  }
}

TEST(ReproduceRunner, MakesWhatIsMissingOnceAndKeepsTheResults) {
  const Small small("finish");
  EXPECT_EQ(state_of(small.runs().front(), small.places), State::fresh);
  const Outcome outcome = small.make();
  EXPECT_EQ(outcome.finished, 4u);
  EXPECT_THAT(outcome.failures, ElementsAre());
  EXPECT_THAT(small.words("apples-dba-seed1"),
              AllOf(HasSubstr("train --config"), HasSubstr("--set model.method=dba"), HasSubstr("--set seed=1"),
                    HasSubstr("data.train=" + (small.folder / "data/apples.ts").string())));
  for (const auto& run : small.runs()) {
    EXPECT_EQ(state_of(run, small.places), State::finished);
    EXPECT_FALSE(std::filesystem::exists(small.places.run_folder(run) / "checkpoints/step-00000001"));
  }
  EXPECT_EQ(small.make().finished, 4u);
  const std::string words = small.words("pears-softmax-seed1");
  EXPECT_EQ(std::ranges::count(words, '\n'), 1) << "a finished run was made again";
  std::filesystem::remove(small.folder / "results/pears-dba-seed1.json");
  EXPECT_EQ(small.make().finished, 4u) << "the result is made from the report";
  EXPECT_EQ(read_results(small.folder / "results").size(), 4u);
}

TEST(ReproduceRunner, AFailedRunIsToldAndTheOthersAreMade) {
  const Small small("case \"$words\" in *model.method=softmax*) echo 'no such thing'; exit 1;; *) finish;; esac");
  const Outcome outcome = small.make();
  EXPECT_EQ(outcome.finished, 2u);
  EXPECT_THAT(outcome.failures, ElementsAre(AllOf(HasSubstr("apples-softmax-seed1: ended with status 1"),
                                                  HasSubstr((small.folder / "runs/apples-softmax-seed1.log").string())),
                                            HasSubstr("pears-softmax-seed1")));
  EXPECT_THAT(text_of(small.folder / "runs/apples-softmax-seed1.log"), HasSubstr("no such thing"));
}

TEST(ReproduceRunner, ARunThatTheSystemKilledIsToldWithTheLikelyCause) {
  const Small small("case \"$words\" in *model.method=softmax*) kill -9 $$;; *) finish;; esac");
  EXPECT_THAT(small.make().failures, ElementsAre(AllOf(HasSubstr("apples-softmax-seed1: ended with status 137"),
                                                       HasSubstr("when memory runs out"), HasSubstr(".log")),
                                                 HasSubstr("pears-softmax-seed1")));
}

/// One run, or one for each of --seeds; seed 2 of pears-softmax fails.
constexpr const char* kOneOrSeveral =
    "if [ -z \"$seeds\" ]; then finish; exit 0; fi\n"
    "base=$folder\n"
    "for seed in $(echo $seeds | tr , ' '); do\n"
    "  case $base$seed in *pears-softmax2) exit 1;; esac\n"
    "  folder=$base-seed$seed; mkdir -p $folder/checkpoints; echo 'seed: 1' > $folder/config.yaml; finish\n"
    "done";

TEST(ReproduceRunner, AProcessMakesSeveralSeedsAndTheOthersAreMadeWhereOneFails) {
  Small small(kOneOrSeveral);
  small.experiment.seeds = {1, 2, 3, 4};
  small.options.jobs = 1;
  const Outcome outcome = small.make();
  EXPECT_EQ(outcome.finished, 15u);
  EXPECT_THAT(outcome.failures,
              ElementsAre(AllOf(HasSubstr("pears-softmax-seed2: ended with status 1"),
                                HasSubstr((small.folder / "runs/pears-softmax-seed1.log").string()))));
  EXPECT_EQ(read_results(small.folder / "results").size(), 15u);
  EXPECT_THAT(small.words("apples-dba"), EndsWith("--seeds 1,2,3,4\n"));
  EXPECT_EQ(std::ranges::count(small.words("apples-dba"), '\n'), 1) << "one process for all";
  EXPECT_THAT(small.words("pears-softmax"), EndsWith("--seeds 3,4\n")) << "what the one that failed had left";
}

TEST(ReproduceRunner, ResumedRunsHaveAProcessOfTheirOwnAndSoHasEachWhereJobsWouldBeIdle) {
  for (const std::size_t jobs : {1, 2}) {
    Small small(kOneOrSeveral);
    small.experiment.seeds = {1, 2, 3};
    small.options.jobs = jobs;
    write(small.folder / "runs/apples-dba-seed1/config.yaml", "seed: 1\n");
    const auto runs = small.runs({{"apples"}, {"dba"}, {}, {}});
    EXPECT_EQ(make_missing(small.experiment, runs, small.places, small.options).finished, 3u);
    EXPECT_THAT(small.words("apples-dba-seed1"), HasSubstr("--resume"));
    EXPECT_THAT(small.words("apples-dba"), jobs == 1 ? EndsWith("--seeds 2,3\n") : EndsWith(""));
    EXPECT_EQ(std::filesystem::exists(small.folder / "runs/apples-dba"), jobs == 1);
  }
}

TEST(ReproduceRunner, MissingDataAreSkipped) {
  const Small small("finish");
  std::filesystem::remove(small.folder / "data/pears.ts");
  EXPECT_EQ(state_of(small.runs().back(), small.places), State::no_data);
  EXPECT_THAT(missing_data(small.runs().back(), small.places), Contains(small.folder / "data/pears.ts"));
  const Outcome outcome = small.make();
  EXPECT_EQ(outcome.finished, 2u);
  EXPECT_EQ(outcome.without_data, 2u);
  EXPECT_THAT(outcome.failures, ElementsAre());
}

TEST(ReproduceRunner, ASignalIsHandedOnAndTheRunsGoOnLater) {
  // The first call waits for the signal, as a run in the middle of an update would; the second one finishes.
  const Small small(
      "if [ $(wc -l < $folder/words) -gt 1 ]; then finish; exit 0; fi\n"
      "trap 'echo saved; exit 130' INT\n"
      "touch $folder/waits; while :; do sleep 0.05; done");
  std::jthread interrupt([&] {
    const auto waits = [&](const char* run) { return std::filesystem::exists(small.folder / "runs" / run / "waits"); };
    while (!waits("apples-dba-seed1") || !waits("apples-softmax-seed1"))
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::raise(SIGINT);
  });
  const Outcome stopped = small.make();
  EXPECT_EQ(stopped.signal, SIGINT);
  EXPECT_EQ(stopped.finished, 0u);
  EXPECT_THAT(stopped.failures, ElementsAre());
  EXPECT_EQ(text_of(small.folder / "runs/apples-dba-seed1.log"), "saved\n");
  EXPECT_EQ(state_of(small.runs().front(), small.places), State::interrupted);
  EXPECT_EQ(state_of(small.runs().back(), small.places), State::fresh) << "nothing starts after the signal";

  const auto words = train_words(small.runs().front(), small.places, small.options);
  EXPECT_THAT(words, ElementsAre("train", "--resume", (small.folder / "runs/apples-dba-seed1").string()));
  std::filesystem::remove_all(small.folder / "data/pears.ts");
  EXPECT_EQ(small.make().finished, 2u);
}

TEST(ReproduceResults, HoldSettingsProtocolsAndThinnedCurves) {
  const Small small("");
  const auto run = small.runs().front();
  const auto folder = small.places.run_folder(run);
  write(folder / "config.yaml", "data:\n  train: /home/somebody/apples.ts\n  cache: /tmp/cache\nmodel:\n  d: 32\n");
  write(folder / "report.json",
        R"({"protocol": "honest", "commit": "abc", "version": "0", "torch": "2", "device": "cpu", "threads": 1,
            "precision": "float32", "seconds": 3.5, "updates": 999, "best_update": 7, "parameters": 9,
            "training_examples": 5, "model_chosen_on": "x", "test": {"accuracy": 0.25}})");
  std::string lines;
  for (int step = 0; step < 999; ++step)
    lines += R"({"step": )" + std::to_string(step) + R"(, "part": "train", "loss": 0.1234567, "accuracy": 1.0})" + "\n";
  write(folder / "metrics.jsonl", lines);
  std::filesystem::create_directories(small.places.results);
  const std::vector<std::pair<std::string, std::string>> machine = {{"CPU", "a processor"}};
  const auto file = small.places.result(run);
  const Result result = write_result(small.experiment, run, folder, file, machine);
  EXPECT_EQ(result.accuracy, (std::map<std::string, double>{{"honest", 0.25}})) << "without train.watch_test one";

  const auto json = nlohmann::json::parse(text_of(file));
  EXPECT_EQ(json["config"]["model"]["d"], 32);
  EXPECT_EQ(json["config"]["data"]["train"], "apples.ts") << "where the data lay is nobody's business";
  EXPECT_EQ(json["config"]["data"]["cache"], "");
  EXPECT_EQ(json["machine"]["CPU"], "a processor");
  const auto& curve = json["curves"]["train"];
  ASSERT_EQ(curve["step"].size(), kCurvePoints);
  EXPECT_EQ(curve["step"].front(), 0);
  EXPECT_EQ(curve["step"].back(), 998);
  EXPECT_EQ(curve["loss"].front(), 0.1235);

  write(file, "{\"task\": \"apples\"}");
  EXPECT_THAT([&] { read_result(file); }, ThrowsMessage<bytes::FormatError>(HasSubstr("apples-dba-seed1.json")));
}

Result result_of(const std::string& task, const std::string& method, double accuracy) {
  Result result;
  result.task = task;
  result.method = method;
  result.accuracy = {{"as_published", accuracy}};
  return result;
}

TEST(ReproduceTable, GivesMeanDeviationSeedsAndThePaperBeside) {
  EXPECT_EQ(mean_and_deviation(std::vector{0.5, 0.6, 0.7}, 1), "60.0 ± 10.0 (3)");
  EXPECT_EQ(mean_and_deviation(std::vector{0.98}, 1), "98.0 (1)");
  const Small small("");
  const std::vector<Result> results = {result_of("apples", "dba", 0.9), result_of("apples", "dba", 0.92),
                                       result_of("apples", "softmax", 0.8), result_of("pears", "dba", 0.7)};
  const std::string page = results_page(small.experiment, results);
  EXPECT_THAT(page, AllOf(HasSubstr("| Apples | here | 91.0 ± 1.4 (2) | 80.0 (1) |\n| | paper | 91.5 ± 0.2 | 90.0 |"),
                          HasSubstr("| Pears | here | 70.0 (1) | – |\n| | paper | 70.0 | – |")));
  EXPECT_THAT(page, Not(HasSubstr("## Honest"))) << "a protocol that nothing ran under";
  EXPECT_THAT(page, Not(HasSubstr("mean of"))) << "one task alone has both methods";
}

TEST(ReproduceTable, MeansAreOverTheTasksThatAllMethodsHaveRun) {
  const Small small("");
  const std::vector<Result> results = {result_of("apples", "dba", 0.9), result_of("apples", "softmax", 0.8),
                                       result_of("pears", "dba", 0.7), result_of("pears", "softmax", 0.5)};
  EXPECT_THAT(results_page(small.experiment, results),
              HasSubstr("| mean of the paper's 2 above | here | 80.0 | 65.0 |\n| | paper | 80.8 | – |"));
}

}  // namespace
}  // namespace dba::reproduce

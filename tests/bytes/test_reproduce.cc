// `dba reproduce`: which runs there are, how they are made and resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <thread>

#include "dba/bytes/errors.h"
#include "dba/config/config_file.h"
#include "reproduce/result.h"
#include "reproduce/run_lock.h"
#include "run/lock_file.h"
#include "small_experiment.h"

namespace dba::reproduce {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::ThrowsMessage;

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
      ThrowsMessage<std::invalid_argument>(HasSubstr("did you mean softmax? There are: dba, softmax")));
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

TEST(ReproduceRunner, ADamagedResultIsNoResult) {
  const Small small("finish");
  small.make();
  const auto run = small.runs().front();
  const std::string whole = bytes::contents(small.places.result(run));
  write(small.places.result(run), whole.substr(0, whole.size() / 2));
  EXPECT_EQ(result_file(run, small.places), ResultFile::damaged);
  EXPECT_EQ(state_of(run, small.places), State::finished) << "by its report";
  EXPECT_EQ(small.make().finished, 4u);
  EXPECT_EQ(bytes::contents(small.places.result(run)), whole);
  EXPECT_EQ(std::ranges::count(small.words(run.name()), '\n'), 1) << "made from the report";

  write(small.places.result(run), "");
  std::filesystem::remove_all(small.places.run_folder(run));
  EXPECT_EQ(state_of(run, small.places), State::fresh);
  EXPECT_EQ(small.make().finished, 4u);
  EXPECT_NE(result_file(run, small.places), ResultFile::damaged);
}

TEST(ReproduceRunner, ADamagedReportIsNoReport) {
  Small small("finish");
  small.options.quiet = false;
  small.make();
  const auto run = small.runs().front();
  const auto folder = small.places.run_folder(run);
  const auto report = small.places.report(run);
  const std::string whole = bytes::contents(report);
  std::string other_type = whole;
  other_type.replace(other_type.find("\"seconds\": 3"), 12, "\"seconds\": []");
  const std::pair<std::string, std::string> damages[] = {{whole.substr(0, whole.size() / 2), "expected a JSON object"},
                                                         {"", "expected a JSON object"},
                                                         {R"({"protocol": "honest"})", "commit"},
                                                         {other_type, "number"}};
  for (const auto& [text, reason] : damages) {
    SCOPED_TRACE(text);
    std::filesystem::remove(small.places.result(run));
    std::filesystem::remove(folder / "words");
    write(report, text);
    EXPECT_EQ(state_of(run, small.places), State::interrupted);
    EXPECT_THAT(report_fault(folder), HasSubstr(reason));
    EXPECT_THAT([&] { write_result(small.experiment, run, small.places, {}); },
                ThrowsMessage<bytes::FormatError>(AllOf(HasSubstr(report.string()), HasSubstr(reason))));
    testing::internal::CaptureStderr();
    EXPECT_EQ(small.make().finished, 4u);
    EXPECT_THAT(
        testing::internal::GetCapturedStderr(),
        AllOf(HasSubstr(report.string() + ": damaged ("), HasSubstr(reason), HasSubstr("); the run is made again\n")));
    EXPECT_THAT(small.words(run.name()), HasSubstr("train --resume")) << "which begins anew without a checkpoint";
    EXPECT_EQ(bytes::contents(report), whole);
    EXPECT_EQ(result_file(run, small.places), ResultFile::whole);
  }

  std::filesystem::remove(small.places.result(run));
  write(report, "{");
  write(folder / "checkpoints/step-00000001/model", "");
  testing::internal::CaptureStderr();
  EXPECT_EQ(small.make().finished, 4u);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("; the run goes on from its last checkpoint\n"));

  std::filesystem::remove(small.places.result(run));
  std::filesystem::remove_all(folder);
  write(report, "{");
  EXPECT_EQ(state_of(run, small.places), State::fresh) << "nothing to go on with";
  EXPECT_EQ(small.make().finished, 4u);
  EXPECT_THAT(small.words(run.name()), HasSubstr("train --config"));

  write(report, "{");
  EXPECT_EQ(state_of(run, small.places), State::finished) << "by its result";
}

TEST(ReproduceRunner, ARunAtWorkIsNotTakenForFinishedByADamagedReport) {
  // Two seeds in one process, the first of them with a damaged report from before, which must be gone.
  Small small(
      "base=$folder\n"
      "for seed in 1 2; do\n"
      "  folder=$base-seed$seed; [ -e $folder/report.json ] && exit 1\n"
      "  mkdir -p $folder; echo 'seed: 1' > $folder/config.yaml; finish\n"
      "done");
  small.experiment.seeds = {1, 2};
  small.options.jobs = 1;
  write(small.folder / "runs/apples-dba-seed1/report.json", "{");
  const auto runs = small.runs({{"apples"}, {"dba"}, {}, {}});
  const auto outcome = make_missing(small.experiment, runs, small.places, small.options);
  EXPECT_EQ(outcome.finished, 2u);
  EXPECT_THAT(outcome.failures, ElementsAre());
}

TEST(ReproduceRunner, AFinishedRunWithOtherSettingsIsToldAndStays) {
  Small small("finish; echo 'model: {layers: 1}' > $folder/config.yaml");
  small.make();
  small.options.quiet = false;
  const auto said = [&](const std::vector<std::string>& overrides) {
    small.options.overrides = overrides;
    testing::internal::CaptureStderr();
    EXPECT_EQ(small.make().finished, 4u);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said({}), "");
  EXPECT_EQ(said({"model.layers=1", "train.log_every=3", "seed=9"}), "");
  EXPECT_THAT(said({"model.layers=3"}),
              HasSubstr("apples-dba-seed1: was finished with other settings than --set says (model.layers=1) and stays "
                        "so; name other --runs and --results\n"));
}

TEST(ReproduceRunner, ARunThatAnotherProcessMakesIsLeftToIt) {
  const Small small("finish");
  const auto runs = small.runs();
  std::filesystem::create_directories(small.places.runs);
  std::string owner;
  {
    const auto other = RunLock::take(small.places.lock(runs[0]), owner);
    const auto another = RunLock::take(small.places.lock(runs[1]), owner);
    ASSERT_TRUE(other && another);
    EXPECT_FALSE(RunLock::take(small.places.lock(runs[0]), owner));
    EXPECT_EQ(owner, "process " + std::to_string(::getpid()));
    EXPECT_EQ(run::lock_owner(small.places.lock(runs[0])), owner);
    EXPECT_EQ(run::lock_owner(small.places.lock(runs[2])), "") << "nobody makes it";
    const Outcome outcome = small.make();
    EXPECT_EQ(outcome.finished, 2u);
    EXPECT_THAT(outcome.elsewhere, ElementsAre(runs[0].name(), runs[1].name()));
    EXPECT_THAT(outcome.failures, ElementsAre());
    EXPECT_FALSE(std::filesystem::exists(small.places.run_folder(runs[0])));
    EXPECT_FALSE(std::filesystem::exists(small.places.log(runs[0])));
  }
  EXPECT_FALSE(std::filesystem::exists(small.places.lock(runs[0]))) << "it goes with its owner";
  write(small.places.lock(runs[0]), "1\n");
  EXPECT_EQ(run::lock_owner(small.places.lock(runs[0])), "") << "a killed process left it behind";
  EXPECT_EQ(small.make().finished, 4u);
}

TEST(ReproduceRunner, AFailedRunIsToldAndTheOthersAreMade) {
  const Small small("case \"$words\" in *model.method=softmax*) echo 'no such thing'; exit 1;; *) finish;; esac");
  const Outcome outcome = small.make();
  EXPECT_EQ(outcome.finished, 2u);
  EXPECT_THAT(outcome.failures, ElementsAre(AllOf(HasSubstr("apples-softmax-seed1: ended with status 1"),
                                                  HasSubstr((small.folder / "runs/apples-softmax-seed1.log").string())),
                                            HasSubstr("pears-softmax-seed1")));
  EXPECT_THAT(bytes::contents(small.folder / "runs/apples-softmax-seed1.log"), HasSubstr("no such thing"));
}

TEST(ReproduceRunner, AReasonOfSeveralLinesIsToldWhole) {
  const Small small(
      "echo 'dba: an earlier one'; echo '12/40 updates'; echo 'dba: one.yaml: the settings do not fit together'; "
      "echo '  schedule.warmup (9) must not exceed train.updates (4)'; echo; echo '  seed (-1) must not be negative'; "
      "exit 1");
  EXPECT_THAT(small.make().failures.front(),
              HasSubstr("ended with status 1: dba: one.yaml: the settings do not fit together: schedule.warmup (9) "
                        "must not exceed train.updates (4); seed (-1) must not be negative; what it said is in "));
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
  EXPECT_EQ(bytes::contents(small.folder / "runs/apples-dba-seed1.log"), "saved\n");
  EXPECT_EQ(state_of(small.runs().front(), small.places), State::interrupted);
  EXPECT_EQ(state_of(small.runs().back(), small.places), State::fresh) << "nothing starts after the signal";

  const auto words = train_words(small.runs().front(), small.places, small.options);
  EXPECT_THAT(words, ElementsAre("train", "--resume", (small.folder / "runs/apples-dba-seed1").string()));
  std::filesystem::remove_all(small.folder / "data/pears.ts");
  EXPECT_EQ(small.make().finished, 2u);
}

}  // namespace
}  // namespace dba::reproduce

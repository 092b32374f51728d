// `dba reproduce`: what is kept of runs and what the page says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "dba/bytes/errors.h"
#include "reproduce/result.h"
#include "reproduce/settings.h"
#include "reproduce/shortened.h"
#include "reproduce/table.h"
#include "small_experiment.h"

namespace dba::reproduce {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

TEST(ReproduceResults, HoldSettingsProtocolsAndThinnedCurves) {
  const Small small("");
  const auto run = small.runs().front();
  const auto folder = small.places.run_folder(run);
  write(folder / "config.yaml", "data:\n  train: /home/somebody/apples.ts\n  cache: /tmp/cache\nmodel:\n  d: 32\n");
  write(folder / "report.json",
        R"({"protocol": "honest", "commit": "abc", "version": "0", "torch": "2", "device": "cpu", "threads": 1,
            "precision": "float32", "seconds": 3.5, "updates": 999, "best_update": 7, "parameters": 9,
            "training_examples": 5, "data_digests": {"training": "0a", "test": "0b"}, "model_chosen_on": "x",
            "test": {"accuracy": 0.25}})");
  std::string lines;
  for (int step = 0; step < 999; ++step)
    lines += R"({"step": )" + std::to_string(step) + R"(, "part": "train", "loss": 0.1234567, "accuracy": 1.0})" + "\n";
  write(folder / "metrics.jsonl", lines);
  std::filesystem::create_directories(small.places.results);
  const std::vector<std::pair<std::string, std::string>> machine = {{"CPU", "a processor"}};
  const auto file = small.places.result(run);
  const Result result = write_result(small.experiment, run, small.places, machine);
  EXPECT_EQ(result.accuracy, (std::map<std::string, double>{{"honest", 0.25}})) << "without train.watch_test one";

  const auto json = nlohmann::json::parse(bytes::contents(file));
  EXPECT_EQ(result.data, (std::map<std::string, std::string>{{"training", "0a"}, {"test", "0b"}}));
  EXPECT_EQ(json["data_digests"]["training"], "0a");
  EXPECT_EQ(json["config"]["model"]["d"], 32);
  EXPECT_EQ(json["config"]["data"]["train"], "apples.ts") << "where the data lay is nobody's business";
  EXPECT_EQ(json["config"]["data"]["cache"], "");
  EXPECT_EQ(json["changed"], nlohmann::json({"model.d=32"})) << "the recipe has the default";
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

Result on_data(Result result, const std::string& file, const std::string& training) {
  result.file = file;
  result.data = {{"training", training}, {"test", "7777777777777777"}};
  return result;
}

TEST(ReproduceTable, ResultsOnDifferentDataAreNotAveraged) {
  const Small small("");
  const std::string one = "1111111111111111";
  const std::string other = "2222222222222222";
  std::vector<Result> results = {result_of("apples", "dba", 0.5),  // from before there were digests
                                 on_data(result_of("apples", "dba", 0.9), "a.json", one),
                                 on_data(result_of("pears", "dba", 0.4), "p.json", other)};
  EXPECT_THAT(results_page(small.experiment, results), HasSubstr("| Apples | here | 70.0 ± 28.3 (2) |"))
      << "one data set, as far as anybody knows";

  results.push_back(result_of("apples", "softmax", 0.9));
  results.back().data = {{"training", one}};
  EXPECT_THAT(results_page(small.experiment, results), HasSubstr("| Apples | here | 70.0 ± 28.3 (2) | 90.0 (1) |"))
      << "a part that one of them lacks tells nothing";
  results.pop_back();

  results.push_back(on_data(result_of("apples", "dba", 0.7), "b.json", other));
  results.push_back(on_data(result_of("apples", "dba", 0.8), "c.json", other));
  const std::string page = results_page(small.experiment, results);
  EXPECT_THAT(page, AllOf(HasSubstr("| Apples | here | 50.0 (1) |\n| | paper | 91.5 ± 0.2 |"),
                          HasSubstr("| Apples (training data 11111111) | here | 90.0 (1) |\n| "),
                          HasSubstr("| Apples (training data 22222222) | here | 75.0 ± 7.1 (2) |\n| "),
                          HasSubstr("| Pears | here | 40.0 (1) |"),
                          HasSubstr("(training data 11111111: a.json; training data 22222222: b.json, c.json)")));
  EXPECT_LT(page.find("| Apples (training data 11111111)"), page.find("| Apples (training data 22222222)"));

  results.push_back(result_of("apples", "softmax", 0.6));
  results.back().data = {{"test", "7777777777777777"}};
  EXPECT_THAT(results_page(small.experiment, results),
              AllOf(HasSubstr("| Apples (training data 11111111) | here | 90.0 (1) | 60.0 (1) |"),
                    HasSubstr("| Apples (training data 22222222) | here | 75.0 ± 7.1 (2) |")))
      << "one that lacks a part does not join those that differ in it";
}

Result with(Result result, const std::string& file, const std::vector<std::string>& changed) {
  result.file = file;
  result.changed = changed;
  return result;
}

TEST(ReproduceTable, ATrialIsARowOfItsOwnThatNamesItsSettings) {
  const Small small("");
  std::vector<Result> results = {
      with(result_of("apples", "dba", 0.9), "a.json", {"data.leave_out=[0]", "model.layers=1"}),
      with(result_of("apples", "dba", 0.7), "b.json", {"data.leave_out=[0]", "model.layers=1"}),
      with(result_of("apples", "softmax", 0.6), "c.json", {"data.leave_out=[0]", "model.layers=1"})};
  std::string page = results_page(small.experiment, results);
  EXPECT_THAT(
      page,
      AllOf(HasSubstr("trials. They were not made by the recipe, `configs/small`,"),
            HasSubstr("- Apples (`data.leave_out=[0]`, `model.layers=1`): a.json, b.json, c.json\n"),
            HasSubstr("| Apples (`data.leave_out=[0]`, `model.layers=1`) | here | 80.0 ± 14.1 (2) | 60.0 (1) |"),
            Not(HasSubstr("| Apples | here |")), Not(HasSubstr("| | paper |")), Not(HasSubstr("different settings"))));

  results.push_back(with(result_of("apples", "dba", 0.5), "d.json", {}));
  results.push_back(with(result_of("apples", "dba", 0.3), "e.json", {"model.layers=2"}));
  results.push_back(with(result_of("pears", "dba", 0.4), "p.json", {}));
  page = results_page(small.experiment, results);
  EXPECT_THAT(page, AllOf(HasSubstr("| Apples | here | 50.0 (1) | – |\n| | paper | 91.5 ± 0.2 | 90.0 |\n"
                                    "| Apples (`data.leave_out=[0]`, `model.layers=1`) | here | 80.0 ± 14.1 (2) |"),
                          HasSubstr("| Apples (`model.layers=2`) | here | 30.0 (1) | – |"),
                          HasSubstr("Apples: the results were made with different settings and are not averaged ("),
                          HasSubstr("`model.layers=2`: e.json; the recipe: d.json)"),
                          HasSubstr("| Pears | here | 40.0 (1) |"), Not(HasSubstr("Pears: the results"))));

  results = {with(result_of("apples", "dba", 0.5), "d.json", {}),
             with(result_of("apples", "dba", 0.3), "e.json", {"model.layers=2"})};
  results.back().variant = "updates7";
  EXPECT_THAT(results_page(small.experiment, results), Not(HasSubstr("different settings")))
      << "shortened runs have tables of their own anyway";
}

TEST(ReproduceTable, TrialsAreToldBeforeTheirDataAre) {
  const Small small("");
  const std::string one = "1111111111111111";
  std::vector<Result> results = {
      on_data(with(result_of("apples", "dba", 0.9), "", {}), "a.json", one),
      on_data(with(result_of("apples", "dba", 0.5), "", {"data.leave_out=[0]"}), "b.json", "2222222222222222")};
  EXPECT_THAT(results_page(small.experiment, results),
              AllOf(HasSubstr("| Apples | here | 90.0 (1) |"),
                    HasSubstr("| Apples (`data.leave_out=[0]`) | here | 50.0"), Not(HasSubstr("different data"))))
      << "a setting may well make other data";
}

TEST(ReproduceSettings, AreComparedWithTheRecipe) {
  const Small small("");
  write(small.folder / "configs/one.yaml", "seed: 7\nmodel:\n  layers: 3\noptimiser:\n  lr: 0.5\n");
  const auto run = small.runs().back();  // pears-softmax
  const auto changed = [&](const reproduce::Run& of, const std::string& config) {
    return changed_settings(of, config, small.places.configs);
  };
  const std::string recipe = R"("model": {"method": "softmax", "layers": 3}, "optimiser": {"lr": 0.5})";
  EXPECT_THAT(changed(run, "{" + recipe + "}"), ElementsAre()) << "what it lacks had its default";
  EXPECT_THAT(changed(run, R"({"seed": 5, "device": "cpu", "threads": 1, "data": {"train": "pears.ts", "cache": "x"},
                               "train": {"log_every": 3}, "expect": {"update": 9}, )" +
                               recipe + "}"),
              ElementsAre())
      << "what leaves the model as it is";
  EXPECT_THAT(changed(run, R"({"data": {"train": "train.cache"}, )" + recipe + "}"), ElementsAre());
  EXPECT_THAT(changed(run, R"({"precision": "bfloat16", "data": {"train": "plums.ts", "leave_out": [0, 1]},
                       "model": {"method": "dba", "layers": 2}, "optimiser": {"lr": 0.25}, "unheard": {"of": 1}})"),
              ElementsAre("precision=bfloat16", "data.train=plums.ts", "data.leave_out=[0,1]", "model.method=dba",
                          "model.layers=2", "optimiser.lr=0.25"));
  EXPECT_THAT(changed(shortened(run, 20, {}), "{" + recipe + "}"),
              ElementsAre("schedule.warmup=100", "train.updates=0"))
      << "a shortened run is compared with the shortened recipe";

  Result result = result_of("pears", "softmax", 0.5);
  result.file = "pears.json";
  result.config = R"({"model": {"method": "softmax", "layers": 2}, "optimiser": {"lr": 0.5}})";
  std::vector<Result> results = {result};
  result.changed = {{"model.layers=2"}};
  results.push_back(result);
  const auto nowhere = compare_with_recipes(small.experiment, results, small.folder / "nowhere");
  EXPECT_THAT(nowhere,
              ElementsAre(AllOf(HasSubstr("pears.json"), HasSubstr("nowhere/one.yaml"), HasSubstr("--configs"))))
      << "the other one says it itself";
  EXPECT_THAT(results[1].changed, testing::Optional(ElementsAre("model.layers=2")));
  EXPECT_THAT(compare_with_recipes(small.experiment, results, small.places.configs), ElementsAre());
  EXPECT_THAT(results[0].changed, testing::Optional(ElementsAre("model.layers=2")));
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

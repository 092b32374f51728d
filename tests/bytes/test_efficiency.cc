#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "dba/bytes/errors.h"
#include "reproduce/efficiency.h"
#include "reproduce/paper_efficiency.h"
#include "scratch_folder.h"

namespace dba::reproduce {
namespace {

using bytes::ScratchFolder;
using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

EfficiencyCell cell(const std::string& method, std::int64_t length, double seconds, std::int64_t bytes) {
  EfficiencyCell made;
  made.method = method;
  made.length = length;
  made.pass = "training";
  made.status = "ok";
  made.seconds = made.low = made.high = seconds;
  made.samples = 3;
  made.bytes = bytes;
  made.clock = "clock";
  return made;
}

EfficiencyResults some_results() {
  EfficiencyResults results;
  results.machine = {{"dba", "1 (old)"}, {"torch", "2"}, {"CPU", "a processor"}};
  results.device = "cpu";
  results.dtype = "float32";
  results.batch = 2;
  results.put(cell(kUnfused, 512, 6.0, 800));
  results.put(cell(kFused, 512, 3.0, 400));
  results.put(cell("dba", 512, 2.0, 200));
  EfficiencyCell skipped;
  skipped.method = "yoso";
  skipped.length = 16384;
  skipped.pass = "training";
  skipped.status = "skipped";
  skipped.reason = "it would take too long";
  results.put(skipped);
  results.put_options("dba", "d_p=4");
  results.put_options("local", "block=64");
  results.put_options("dba", "d_in=24, d_p=16");  // in place of the old ones
  results.put_options("softmax", "");
  return results;
}

TEST(Efficiency, RatiosAreToTheYardsticksAtTheSameLength) {
  auto results = some_results();
  const auto* ours = results.find("dba", 512, "training");
  EXPECT_EQ(speed_ratio(results, *ours, kUnfused), 3.0);
  EXPECT_EQ(speed_ratio(results, *ours, kFused), 1.5);
  EXPECT_EQ(memory_ratio(results, *ours, kUnfused), 0.25);
  EXPECT_EQ(memory_ratio(results, *ours, kFused), 0.5);
  results.put(cell("dba", 1024, 2.0, 200));
  EXPECT_EQ(speed_ratio(results, *results.find("dba", 1024, "training"), kUnfused), std::nullopt);
  EXPECT_EQ(results.find("dba", 512, "inference"), nullptr);
}

TEST(Efficiency, AFileIsReadAsItWasWritten) {
  const ScratchFolder folder;
  const auto file = folder.path() / "cpu-float32-batch2.json";
  EXPECT_FALSE(read_efficiency(file));
  auto results = some_results();
  write_efficiency(file, results);
  auto read = read_efficiency(file);
  ASSERT_TRUE(read);
  EXPECT_TRUE(read->comparable(results));
  ASSERT_EQ(read->cells.size(), 4u);
  EXPECT_EQ(read->find("dba", 512, "training")->seconds, 2.0);
  EXPECT_EQ(read->find("yoso", 16384, "training")->reason, "it would take too long");
  EXPECT_EQ(read->options, results.options);
  results.put(cell("dba", 512, 9.0, 1));  // in place of the old one
  EXPECT_EQ(results.cells.size(), 4u);
  read->batch = 32;
  EXPECT_FALSE(read->comparable(results));

  const auto json = nlohmann::json::parse(text_of(file));
  EXPECT_EQ(json["lra_average"]["source"], "paper");
  EXPECT_NEAR(json["lra_average"]["percent"]["dba"].get<double>(), 62.21, 0.005);
  EXPECT_EQ(json["cells"][2]["speed_vs_unfused"], 3.0);
  std::ofstream(file) << "{}";
  EXPECT_THROW(read_efficiency(file), bytes::FormatError);
}

TEST(Efficiency, FiguresOfAnotherBuildKeepItsName) {
  const ScratchFolder folder;
  const auto file = folder.path() / "cpu-float32-batch2.json";
  write_efficiency(file, some_results());
  EXPECT_THAT(text_of(write_efficiency_page(folder.path())), Not(HasSubstr("Figures of dba 1 (old)")));

  auto later = *read_efficiency(file);
  later.machine.front().second = "2 (new)";
  later.put(cell("dba", 512, 2.0, 200));
  write_efficiency(file, later);
  const auto read = *read_efficiency(file);
  EXPECT_EQ(read.find(kFused, 512, "training")->build, "1 (old)");
  EXPECT_EQ(read.find("dba", 512, "training")->build, "2 (new)");
  EXPECT_THAT(text_of(write_efficiency_page(folder.path())),
              HasSubstr("Figures of dba 1 (old): softmax:math, softmax."));
}

TEST(Efficiency, ThePageHasThePapersFiguresBesideOursAndSaysWhatIsMissing) {
  const ScratchFolder folder;
  write_efficiency(folder.path() / "cpu-float32-batch2.json", some_results());
  const auto page = text_of(write_efficiency_page(folder.path()));
  EXPECT_THAT(page, HasSubstr("| dba | 3.00 (1.4) |"));   // speed, unfused
  EXPECT_THAT(page, HasSubstr("| dba | 0.25 (0.66) |"));  // memory, unfused
  EXPECT_THAT(page, HasSubstr("| dba | 1.50 |"));         // speed, fused: the paper has none
  EXPECT_THAT(page, HasSubstr("TPU"));
  EXPECT_THAT(page, HasSubstr("- yoso, training, n = 16,384: skipped: it would take too long"));
  EXPECT_THAT(page, HasSubstr("a processor"));
  EXPECT_THAT(page, HasSubstr("Options: dba: d_in=24, d_p=16; local: block=64.\n"));
  EXPECT_THAT(page,
              HasSubstr("medians of 3 samples. The quartiles of half of them are at most 0.0 % apart, of all 0 %"));
  EXPECT_THAT(page, HasSubstr("Slower than fused softmax attention at every length: softmax:math.\n"));
  EXPECT_THAT(page, HasSubstr("dba reproduce efficiency --device cpu --dtype float32 --batch 2\n"));
  EXPECT_THAT(page, Not(HasSubstr("figure1.svg")));
}

TEST(Efficiency, ThePageHasTheFigureWhereThereIsOneAndLeavesOtherFilesAlone) {
  const ScratchFolder folder;
  write_efficiency(folder.path() / "cpu-float32-batch2.json", some_results());
  std::ofstream(folder.path() / "figure1.svg") << "<svg/>";
  std::ofstream(folder.path() / "notes.json") << "[]";
  EXPECT_THAT(text_of(write_efficiency_page(folder.path())), HasSubstr("(figure1.svg)"));
}

TEST(Efficiency, TheListSaysWhatIsMissing) {
  const auto results = some_results();
  EXPECT_EQ(efficiency_list(results, {"dba", "yoso"}, {512, 16384}),
            "dba              1 of 4 figures; without: training 16384, inference 512, inference 16384\n"
            "yoso             0 of 4 figures; without: training 512, training 16384 (skipped), inference 512, "
            "inference 16384\n");
}

TEST(Efficiency, AllMethodsOfThePapersTableAreMeasured) {
  for (const bool on_gpu : {false, true}) {
    const auto methods = efficiency_methods(on_gpu);
    for (const auto& row : kPaperEfficiency)
      EXPECT_THAT(methods, ::testing::Contains(row.method));
    EXPECT_THAT(methods, ::testing::IsSupersetOf({kUnfused, kFused}));
  }
  EXPECT_THAT(efficiency_methods(false), Not(::testing::Contains("softmax:flash")));
}

}  // namespace
}  // namespace dba::reproduce

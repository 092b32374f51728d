#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "bench/report.h"
#include "support/bench_figures.h"

namespace dba::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Report sample_report() {
  Report report;
  report.machine = {{"CPU", "a, \"quoted\" name"}};
  report.settings = small({"softmax", "dba"});
  report.results = {timed("softmax", 0.6, 16384), timed("dba", 0.2, 16384), timed("dba", 0.1, 64)};
  report.results[2].status = Status::failed;
  report.results[2].reason = "no kernel, \"none\"";
  report.results[2].seconds = {};
  report.results[2].verdict = {};
  report.results[1].memory = {2'000'000, -1};
  report.results[1].verdict.length = 4096;
  add_ratios(report.results, report.settings.baselines);
  return report;
}

TEST(BenchReport, TextHasAHeaderATableAndReasons) {
  auto report = sample_report();
  const auto text = to_text(report);
  EXPECT_THAT(text, HasSubstr("CPU       a, \"quoted\" name"));
  EXPECT_THAT(text, HasSubstr("vs softmax"));
  EXPECT_THAT(text, HasSubstr("16,384"));
  EXPECT_THAT(text, HasSubstr("200.0"));
  EXPECT_THAT(text, HasSubstr("3.00x"));
  EXPECT_THAT(text, HasSubstr("dba at n = 64 failed: no kernel"));
  EXPECT_THAT(text, HasSubstr("dba at n = 16,384 was checked at n = 4,096"));
  EXPECT_THAT(text, Not(HasSubstr("nan")));
  EXPECT_THAT(text, Not(HasSubstr("stopped before the end")));
  report.complete = false;
  EXPECT_THAT(to_text(report), HasSubstr("stopped before the end"));
}

/// Fields of a line, quotes undone.
std::vector<std::string> csv_fields(const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[i++];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

TEST(BenchReport, CsvHasALinePerFigureAndQuotesWhatNeedsIt) {
  std::istringstream stream(to_csv(sample_report()));
  std::vector<std::vector<std::string>> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(csv_fields(line));
  }
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_THAT(std::set<size_t>({lines[0].size(), lines[1].size(), lines[2].size(), lines[3].size()}),
              ElementsAre(lines[0].size()));
  const auto column = [&](const char* name) {
    return static_cast<size_t>(std::find(lines[0].begin(), lines[0].end(), name) - lines[0].begin());
  };
  EXPECT_EQ(lines[2].at(column("median_ms")), "200");
  EXPECT_EQ(lines[2].at(column("peak_bytes")), "2000000");
  EXPECT_EQ(lines[2].at(column("peak_resident_bytes")), "");
  EXPECT_EQ(lines[2].at(column("times_faster_than_softmax")), "3");
  EXPECT_EQ(lines[3].at(column("median_ms")), "");
  EXPECT_EQ(lines[3].at(column("output_error")), "");
  EXPECT_EQ(lines[3].at(column("reason")), "no kernel, \"none\"");
}

TEST(BenchReport, JsonHoldsSettingsAndFiguresAndNoNan) {
  const auto json = nlohmann::json::parse(to_json(sample_report()));
  EXPECT_EQ(json.at("dba_bench"), 1);
  EXPECT_EQ(json.at("kind"), "layer");
  EXPECT_EQ(json.at("complete"), true);
  EXPECT_EQ(json.at("settings").at("d_p"), 4);
  EXPECT_EQ(json.at("settings").at("methods").size(), 2u);
  const auto& results = json.at("results");
  EXPECT_NEAR(results[1].at("median_ms").get<double>(), 200, 1e-9);
  EXPECT_NEAR(results[1].at("times_faster_than").at("softmax").get<double>(), 3, 1e-9);
  EXPECT_TRUE(results[1].at("reason").is_null());
  EXPECT_TRUE(results[2].at("median_ms").is_null());
  EXPECT_TRUE(results[2].at("times_faster_than").at("softmax").is_null());
  EXPECT_EQ(results[2].at("status"), "failed");
}

}  // namespace
}  // namespace dba::bench

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "dba/bytes/errors.h"
#include "plan/calibrate.h"
#include "plan/constants_file.h"
#include "plan/grid.h"
#include "plan/measure.h"
#include "plan/report.h"
#include "support/plan_shapes.h"

namespace dba::test {
namespace {

using plan::Shape;
using ::testing::HasSubstr;

TEST(Fit, FindsTheConstantsThatMadeTheSamples) {
  auto truth = plan::default_constants(at::kCPU, at::kFloat);
  const auto start = truth;
  double factor = 0.5;
  for (auto& engine : truth.seconds) {
    for (auto& seconds : engine) {
      seconds *= factor;
      factor = factor >= 2 ? 0.5 : factor + 0.25;
    }
  }
  std::vector<plan::Sample> samples;
  for (const auto& shape : plan::grid_shapes(at::kCPU, at::kFloat)) {
    for (const auto candidate : plan::kCandidates) {
      const auto cost = cost_of(shape, candidate);
      samples.push_back({cost.tally, truth.time_of(cost.tally)});
    }
  }
  const auto fitted = plan::fit(samples, start);
  EXPECT_TRUE(fitted.calibrated);
  EXPECT_GT(plan::prediction_error(samples, start), 0.1);
  EXPECT_LT(plan::prediction_error(samples, fitted), 0.02);
  // Nothing was said of softmax attention.
  EXPECT_EQ(fitted.seconds[static_cast<std::size_t>(plan::Engine::softmax_attention)],
            start.seconds[static_cast<std::size_t>(plan::Engine::softmax_attention)]);
}

TEST(Fit, PutsRivalsInOrderThoughBothAreSlowerThanAnyConstantsSay) {
  auto truth = plan::default_constants(at::kCPU, at::kFloat);
  truth.seconds[static_cast<std::size_t>(plan::Engine::plain)][0] *= 0.5;
  truth.seconds[static_cast<std::size_t>(plan::Engine::passes)][0] *= 1.5;
  constexpr plan::Candidate kTwo[] = {plan::Candidate::fused, plan::Candidate::projected};
  std::vector<plan::Sample> alone, rivals;
  for (const auto& shape : plan::grid_shapes(at::kCPU, at::kFloat)) {
    // What no unit counts, different from shape to shape and the same for both.
    const auto index = static_cast<int64_t>(rivals.size() / 2);
    const double uncounted = static_cast<double>(index % 5) * truth.time_of(cost_of(shape, kTwo[0]).tally);
    for (const auto candidate : kTwo) {
      const auto counts = cost_of(shape, candidate).tally;
      alone.push_back({counts, truth.time_of(counts) + uncounted});
      rivals.push_back({counts, truth.time_of(counts) + uncounted, index});
    }
  }
  const auto start = plan::default_constants(at::kCPU, at::kFloat);
  const auto wrong = [&](const plan::Constants& constants) {
    int64_t count = 0;
    for (std::size_t i = 0; i < rivals.size(); i += 2) {
      const bool measured = rivals[i].seconds < rivals[i + 1].seconds;
      count += measured != (constants.time_of(rivals[i].counts) < constants.time_of(rivals[i + 1].counts)) ? 1 : 0;
    }
    return count;
  };
  EXPECT_LT(wrong(plan::fit(rivals, start)), wrong(plan::fit(alone, start)));
}

/// A file of constants that lives as long as the test, and the process's choice of it.
class PlanFile {
 public:
  PlanFile() : path(std::filesystem::temp_directory_path() / ("dba-plan-" + std::to_string(::getpid())) / "plan.json") {
    remove();
    ::setenv("DBA_PLAN_FILE", path.c_str(), 1);
    plan::forget_constants();
  }
  ~PlanFile() {
    remove();
    ::unsetenv("DBA_PLAN_FILE");
    plan::forget_constants();
  }
  void write(const std::string& text) const {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::filesystem::path path;

 private:
  // Not remove_all: libtorch exports an old one, which a program gets instead of its own and which crashes.
  void remove() const {
    ::unlink(path.c_str());
    ::rmdir(path.parent_path().c_str());
  }
};

TEST(ConstantsFile, ComesBackAsItWasWritten) {
  const PlanFile file;
  EXPECT_TRUE(plan::read_constants_file(file.path).sections.empty());
  EXPECT_FALSE(plan::constants_for(at::kCPU, at::kFloat).calibrated);
  plan::ConstantsFile written;
  written.machine = "a machine";
  auto constants = plan::default_constants(at::kCPU, at::kFloat);
  constants.seconds[1][2] = 0.125;
  written.sections["cpu/float32"] = constants;
  written.sections["cuda/bfloat16"] = plan::default_constants(at::kCUDA, at::kBFloat16);
  plan::write_constants_file(file.path, written);
  const auto read = plan::read_constants_file(plan::constants_path());
  EXPECT_EQ(read.machine, "a machine");
  ASSERT_EQ(read.sections.size(), 2u);
  EXPECT_EQ(read.sections.at("cpu/float32").seconds, constants.seconds);
  plan::forget_constants();
  EXPECT_TRUE(plan::constants_for(at::kCPU, at::kFloat).calibrated);
  EXPECT_EQ(plan::constants_for(at::kCPU, at::kFloat).seconds[1][2], 0.125);
  EXPECT_FALSE(plan::constants_for(at::kCPU, at::kDouble).calibrated);
}

TEST(ConstantsFile, BrokenOnesAreRefusedInASentence) {
  const PlanFile file;
  plan::ConstantsFile written;
  written.sections["cpu/float32"] = plan::default_constants(at::kCPU, at::kFloat);
  plan::write_constants_file(file.path, written);
  auto json = nlohmann::json::parse(std::ifstream(file.path));
  const auto refused = [&](const std::string& text, const std::string& word) {
    file.write(text);
    try {
      plan::read_constants_file(file.path);
      ADD_FAILURE() << "taken: " << text;
    } catch (const bytes::FormatError& error) {
      EXPECT_THAT(error.what(), HasSubstr(file.path.string()));
      EXPECT_THAT(error.what(), HasSubstr(word));
      EXPECT_THAT(error.what(), HasSubstr("--calibrate"));
    }
  };
  refused("{\"dba_plan\": 1, ", "JSON");
  refused("[]", "version");
  refused("{\"dba_plan\": 2}", "version");
  refused("{\"dba_plan\": 1}", "constants");
  auto broken = json;
  broken["constants"]["cpu/float32"]["plain"]["bytes"] = -1.0;
  refused(broken.dump(), "plain.bytes");
  broken["constants"]["cpu/float32"]["plain"]["bytes"] = "fast";
  refused(broken.dump(), "plain.bytes");
  broken["constants"]["cpu/float32"].erase("plain");
  refused(broken.dump(), "cpu/float32.plain");
  broken["constants"]["cpu/float32"] = 5;
  refused(broken.dump(), "cpu/float32");
  // A layer goes on by the defaults.
  plan::forget_constants();
  EXPECT_FALSE(plan::constants_for(at::kCPU, at::kFloat).calibrated);
  EXPECT_EQ(plan::choose_order(text_shape()), Order::two_pass);
}

Shape tiny_shape() {
  Shape shape;
  shape.longest = 12;
  shape.batch = 3;
  shape.tokens = 36;
  shape.d = 16;
  shape.heads = 2;
  shape.d_p = 4;
  shape.e = 3;
  shape.dtype = at::kDouble;
  return shape;
}

TEST(Measurement, TimesEveryCandidateAndComparesTheOutputs) {
  plan::Report report;
  report.shape = tiny_shape();
  report.shape.training = true;
  report.plan = plan_of(report.shape);
  plan::Effort effort;
  effort.seconds = 0;
  effort.softmax = true;
  report.figures = plan::measure(report.shape, report.plan, effort);
  ASSERT_EQ(report.figures->candidates.size(), plan::kCandidates.size());
  for (const auto& [candidate, figure] : report.figures->candidates) {
    SCOPED_TRACE(to_string(candidate));
    EXPECT_EQ(figure.failure, "");
    EXPECT_GT(figure.seconds, 0);
    EXPECT_GT(figure.memory.tensors, 0);
    EXPECT_LT(figure.difference, 1e-12);
  }
  EXPECT_GT(report.figures->softmax.seconds, 0);
  const auto text = to_text(report);
  for (const char* word : {"projected", "measured ms", "choice", "crossover", "defaults"}) {
    EXPECT_THAT(text, HasSubstr(word));
  }
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["candidates"].size(), 4u);
  EXPECT_EQ(json["choice"], to_string(report.plan.choice));
}

TEST(Measurement, CalibratesOnWhatItIsGiven) {
  std::vector<Shape> shapes = {tiny_shape(), tiny_shape()};
  shapes[1].training = true;
  std::size_t heard = 0;
  const auto found = plan::calibrate(
      shapes, [&](std::size_t, std::size_t total) { heard = total; }, [] { return false; });
  EXPECT_EQ(heard, 2u);
  EXPECT_EQ(found.samples, 10u);
  // Differences between rivals count as well, so that on two shapes the defaults may come nearer. Predictions of no
  // time at all are off by 1.
  EXPECT_GT(found.error_before, 0);
  EXPECT_GT(found.error_after, 0);
  EXPECT_LT(found.error_after, 1);
  EXPECT_THROW(plan::calibrate(
                   shapes, [](std::size_t, std::size_t) {}, [] { return true; }),
               std::runtime_error);
}

TEST(Measurement, ComparesTheChoiceWithTheBest) {
  const auto rows = plan::measure_grid(
      {tiny_shape()}, 0, [](std::size_t, std::size_t) {}, [] { return false; });
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_GE(rows[0].loss(), 0);
  EXPECT_THAT(plan::to_markdown(rows), HasSubstr("of 1 choices are within 15 %"));
  EXPECT_EQ(plan::grid_shapes(at::kCPU, at::kFloat).size(), 120u);
}

}  // namespace
}  // namespace dba::test

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "bench/efficiency.h"
#include "bench/measure.h"
#include "dba/nn/make_attention.h"
#include "dba/zoo.h"
#include "support/bench_figures.h"

namespace dba::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr double kMegabyte = 1 << 20;

enum class Fault { value, value_when_long, gradient, gradient_from_nothing };

/// DBA that goes wrong in float32 and is right in float64, as a broken kernel would be.
class CrookedImpl : public torch::nn::Module, public Attention {
 public:
  CrookedImpl(const DBAttentionOptions& options, Fault fault) : fault_(fault) {
    layer_ = register_module("layer", DBAttention(options));
  }
  AttentionOutput attend(const at::Tensor& x, const Sequences& sequences, const at::Tensor& z,
                         bool need_weights) override {
    auto output = layer_->attend(x, sequences, z, need_weights);
    if (x.scalar_type() == at::kFloat) {
      const auto& y = output.y;
      switch (fault_) {
        case Fault::value:
          output.y = y * 1.05;
          break;
        case Fault::value_when_long:
          output.y = y * (sequences.longest() > 500 ? 1.05 : 1);
          break;
        case Fault::gradient:  // the right value and half the gradient
          output.y = y + (y.detach() - y) / 2;
          break;
        case Fault::gradient_from_nothing:  // b_K, whose gradient is zero, gets one of the size of b_O's
          output.y = y + (layer_->w_k->bias - layer_->w_k->bias.detach());
          break;
      }
    }
    return output;
  }
  bool takes_slots() const override {
    return true;
  }

 private:
  Fault fault_;
  DBAttention layer_{nullptr};
};

const bool kRegistered = [] {
  const auto add = [](const char* name, Fault fault) {
    register_attention(
        name, [fault](const DBAttentionOptions& options) { return std::make_shared<CrookedImpl>(options, fault); });
  };
  add("crooked", Fault::value);
  add("crooked_when_long", Fault::value_when_long);
  add("crooked_gradient", Fault::gradient);
  add("crooked_zero", Fault::gradient_from_nothing);
  return true;
}();

TEST(BenchCounts, OperationsAreThoseOfTheProducts) {
  const Sizes sizes{.d = 256, .heads = 4, .d_p = 16, .d_in = 24};
  const Case one{4096, 32, Precision::bfloat16, 0};
  const auto cost = [&](const char* method, Pass pass) {
    return cost_of(Kind::layer, parse_method(method), sizes, one, pass, at::kCPU);
  };
  const double tokens = 4096 * 32;
  EXPECT_DOUBLE_EQ(cost("softmax", Pass::forward).operations, 2 * tokens * (4. * 256 * 256 + 2. * 4096 * 256));
  // 8·H·d_p·d multiply-adds a token in form paper, 4·H·d_p·d in form released; the core adds little.
  const double paper = cost("dba", Pass::forward).operations / (2 * tokens * 64 * 256);
  EXPECT_GT(paper, 8);
  EXPECT_LT(paper, 8.1);
  const double released = cost("dba:released", Pass::forward).operations / (2 * tokens * 64 * 256);
  EXPECT_GT(released, 4);
  EXPECT_LT(released, 4.1);
  const double trained = cost("dba", Pass::forward_backward).operations / (2 * tokens * 64 * 256);
  EXPECT_GT(trained, 29);
  EXPECT_LT(trained, 29.3);
  EXPECT_TRUE(std::isnan(cost("crooked", Pass::forward).operations));
}

TEST(BenchMemory, PeakIsThatOfTheTensorsHeldTogether) {
  const auto floats = [](double megabytes) { return torch::empty({static_cast<int64_t>(megabytes * kMegabyte / 4)}); };
  const auto before = floats(5);
  const auto peak = measure_peak(at::kCPU, [&] {
    const auto kept = floats(1);
    floats(3).fill_(1);
    floats(2).fill_(1);
  });
  EXPECT_EQ(peak.tensors, static_cast<int64_t>(4 * kMegabyte));
  // The allocator is torch's own again, and memory from the measurement is given back to the right one.
  at::Tensor left;
  measure_peak(at::kCPU, [&] { left = floats(1); });
  left.reset();
  EXPECT_EQ(measure_peak(at::kCPU, [&] { floats(1); }).tensors, static_cast<int64_t>(kMegabyte));
}

TEST(BenchMemory, EstimateIsOnTheSafeSide) {
  auto settings = small({"softmax:math", "softmax", "dba:reference", "dba:released:reference", "dba:direct"});
  settings.sizes = {.d = 64, .heads = 4, .d_p = 16, .d_in = 24, .d_ffn = 128, .depth = 2};
  for (const auto precision : {Precision::float32, Precision::float64}) {
    for (const auto kind : {Kind::layer, Kind::encoder}) {
      settings.kind = kind;
      const Case one{512, 2, precision, 1};
      for (const auto& method : settings.methods) {
        for (const auto pass : {Pass::forward, Pass::forward_backward}) {
          Work work(settings, method, one);
          work.run(pass);
          const auto peak =
              measure_peak(at::kCPU, [&] { work.run(pass); }).tensors + work.prepared_gradient_bytes(pass);
          const auto estimate = cost_of(kind, method, settings.sizes, one, pass, at::kCPU).memory;
          EXPECT_LE(static_cast<double>(peak), estimate)
              << method.name << ", " << to_string(kind) << ", " << to_string(pass);
          EXPECT_GE(5 * static_cast<double>(peak), estimate)
              << method.name << ", " << to_string(kind) << ", " << to_string(pass);
        }
      }
    }
  }
}

TEST(BenchMeasure, EveryKindPassAndPrecisionGivesFigures) {
  for (const auto kind : {Kind::layer, Kind::encoder, Kind::train_step}) {
    auto settings = small({"softmax", "dba", "dba:released", "dba:direct", "dba:linear"});
    settings.kind = kind;
    settings.caches = {Cache::warm};
    settings.sizes.dropout = 0.1;
    if (kind == Kind::train_step) {
      settings.passes = {Pass::step};
    }
    settings.cases = {{24, 3, Precision::float32, 1}, {7, 1, Precision::bfloat16, 1}, {9, 2, Precision::autocast, 1}};
    std::vector<std::string> sentences;
    int64_t last = 0;
    Watcher watcher;
    watcher.say = [&](const std::string& sentence) { sentences.push_back(sentence); };
    watcher.progress = [&](int64_t done, int64_t total) {
      EXPECT_EQ(done, ++last);
      EXPECT_LE(done, total);
    };
    const auto results = measure(settings, watcher);
    EXPECT_THAT(sentences, IsEmpty());
    EXPECT_EQ(results.size(), settings.cases.size() * settings.methods.size() * settings.passes.size());
    for (const auto& result : results) {
      EXPECT_EQ(result.status, Status::ok) << result.reason;
      EXPECT_GT(result.seconds.median, 0) << result.method;
      EXPECT_GE(result.samples, 3);
      EXPECT_GT(result.memory.tensors, 0);
      EXPECT_EQ(result.verdict.length, result.one.length);
      EXPECT_GT(result.ratios.at(0), 0);
    }
  }
}

TEST(BenchMeasure, SlotsMayBelongToEverySequence) {
  auto settings = small({"dba", "dba:released"});
  settings.sizes.slots_per_sequence = true;
  for (const auto& result : measure(settings, {})) {
    EXPECT_EQ(result.status, Status::ok) << result.reason;
  }
}

TEST(BenchMeasure, EveryMemberOfTheZooIsTimedInEveryKind) {
  std::vector<std::string> names;
  for (const auto& member : zoo::members()) {
    names.push_back(member.name);
  }
  for (const auto kind : {Kind::layer, Kind::encoder, Kind::train_step}) {
    auto settings = small(names);
    settings.kind = kind;
    settings.passes = {kind == Kind::train_step ? Pass::step : Pass::forward_backward};
    settings.repeats = 1;
    settings.sizes.depth = 1;
    settings.cases = {{12, 1, Precision::float32, 1}};
    for (const auto& result : measure(settings, {})) {
      EXPECT_EQ(result.status, Status::ok) << to_string(kind) << ", " << result.method << ": " << result.reason;
    }
  }
}

TEST(BenchEfficiency, MeasuresWhatIsMissingAndLeavesOutWhatTakesTooLong) {
  reproduce::EfficiencyResults results;
  results.batch = 2;
  results.d = 16;
  results.heads = 2;
  results.d_ffn = 16;
  results.layers = 1;
  EfficiencyOptions options;
  options.batch = 2;
  options.methods = {"softmax:math", "local(block=4)", "synthesizer"};
  options.lengths = {12, 8};
  options.seconds = 0;
  options.repeats = 1;
  int saved = 0;
  ASSERT_TRUE(measure_efficiency(options, results, [&] { ++saved; }));
  EXPECT_EQ(saved, 6);
  ASSERT_EQ(results.cells.size(), 12u);
  EXPECT_EQ(results.cells.front().length, 8);  // short ones first
  for (const auto& cell : results.cells) {
    EXPECT_EQ(cell.status, "ok") << cell.method << ": " << cell.reason;
    EXPECT_GT(cell.seconds, 0);
    EXPECT_GT(cell.bytes, 0);
  }
  // In training the parameters, two numbers beside each and what the step needs: more than inference holds.
  EXPECT_GT(results.find("softmax:math", 12, "training")->bytes, results.find("softmax:math", 12, "inference")->bytes);

  // What is there stays, a failed cell is tried again, and nothing beyond the longest call is begun.
  results.cells.back().status = "failed";
  const auto kept = results.cells.front().seconds;
  options.longest_call = 1e-12;
  options.lengths = {8, 12, 16};
  ASSERT_TRUE(measure_efficiency(options, results, [] {}));
  EXPECT_EQ(results.cells.front().seconds, kept);
  EXPECT_EQ(results.find("softmax:math", 16, "training")->status, "skipped");
  EXPECT_THAT(results.find("softmax:math", 16, "training")->reason, HasSubstr("--longest-call"));
  options.stop = [] { return true; };
  EXPECT_FALSE(measure_efficiency(options, results, [] {}));
  options.stop = [] { return false; };
  options.methods = {"synthesizer"};
  options.lengths = {100'000};
  options.longest_call = 1e9;
  ASSERT_TRUE(measure_efficiency(options, results, [] {}));
  EXPECT_THAT(results.find("synthesizer", 100'000, "training")->reason, HasSubstr("million parameters"));
}

EfficiencyOptions one_method(const std::string& method, reproduce::EfficiencyResults& results) {
  results.machine = {{"dba", "this build"}};
  results.batch = results.heads = results.layers = 1;
  results.d = results.d_ffn = 16;
  EfficiencyOptions options;
  options.batch = 1;
  options.methods = {method};
  options.lengths = {8};
  options.seconds = 0;
  return options;
}

TEST(BenchEfficiency, AFigureOfTooFewSamplesIsNone) {
  reproduce::EfficiencyResults results;
  auto options = one_method("local(block=4)", results);
  int asked = 0;
  // Stopped in the midst of a figure, wherever that is.
  for (int most = 1; most < 30; ++most) {
    results.cells.clear();
    asked = 0;
    options.stop = [&] { return ++asked > most; };
    measure_efficiency(options, results, [] {});
    for (const auto& cell : results.cells) {
      EXPECT_EQ(cell.status, "ok") << cell.reason;
      EXPECT_GE(cell.samples, 3) << "stopped when asked for the time " << most;
    }
  }
  EXPECT_EQ(results.cells.size(), 2u);
}

TEST(BenchEfficiency, FiguresOfOtherBuildsAreTakenAgainWhereThatIsAskedFor) {
  reproduce::EfficiencyResults results;
  auto options = one_method("longformer(globals=2)", results);
  ASSERT_TRUE(measure_efficiency(options, results, [] {}));
  ASSERT_EQ(results.cells.size(), 2u);
  EXPECT_EQ(results.options, (decltype(results.options){{"longformer(globals=2)", "globals=2, window=512"}}));
  results.cells[0].build = "another build";
  for (auto& cell : results.cells)
    cell.seconds = -1;
  ASSERT_TRUE(measure_efficiency(options, results, [] {}));
  EXPECT_EQ(results.cells[0].seconds, -1);
  options.retake = true;
  ASSERT_TRUE(measure_efficiency(options, results, [] {}));
  EXPECT_GT(results.cells[0].seconds, 0);
  EXPECT_EQ(results.cells[0].build, "this build");
  EXPECT_EQ(results.cells[1].seconds, -1);
}

TEST(BenchEfficiency, NumbersAreCheckedWhereMembersHaveBlocksToo) {
  reproduce::EfficiencyResults results;
  auto options = one_method("crooked_when_long", results);
  options.lengths = {8, 16, 1024, 2048};
  ASSERT_TRUE(measure_efficiency(options, results, [] {}));
  EXPECT_EQ(results.find("crooked_when_long", 16, "training")->status, "ok");
  EXPECT_EQ(results.find("crooked_when_long", 1024, "training")->status, "wrong");
  EXPECT_EQ(results.find("crooked_when_long", 2048, "training")->status, "skipped");
}

TEST(BenchMeasure, WrongNumbersGetNoTime) {
  auto settings = small({"dba", "crooked", "crooked_gradient", "crooked_zero"});
  std::vector<std::string> sentences;
  Watcher watcher;
  watcher.say = [&](const std::string& sentence) { sentences.push_back(sentence); };
  const auto results = measure(settings, watcher);
  ASSERT_EQ(results.size(), 8u);
  for (const auto& result : results) {
    if (result.method == "dba") {
      EXPECT_EQ(result.status, Status::ok) << result.reason;
      continue;
    }
    EXPECT_EQ(result.status, Status::wrong) << result.method;
    EXPECT_TRUE(std::isnan(result.seconds.median));
    EXPECT_EQ(result.samples, 0);
    EXPECT_TRUE(std::isnan(result.ratios.at(0)));
    EXPECT_THAT(result.reason, HasSubstr(result.method == "crooked" ? "the output is wrong" : "the gradient is wrong"));
  }
  EXPECT_THAT(sentences, Not(IsEmpty()));
  settings.passes = {Pass::forward};
  EXPECT_EQ(measure(settings, {}).at(2).status, Status::ok);  // its values are right
  settings.cases[0].precision = Precision::float64;
  for (const auto& result : measure(settings, {})) {
    EXPECT_EQ(result.status, Status::ok) << result.reason;
  }
}

TEST(BenchMeasure, RoundingOfAGradientThatIsZeroRefusesNobody) {
  // b_K has no gradient in softmax attention; the streaming kernel leaves more of it than the plain one does.
  for (const int64_t length : {8, 17, 32, 64}) {
    auto settings = small({"softmax", "dba", "dba:released"});
    settings.passes = {Pass::forward_backward};
    settings.cases = {{length, 2, Precision::float32, 1}, {length, 2, Precision::bfloat16, 1}};
    for (const auto& result : measure(settings, {})) {
      EXPECT_EQ(result.status, Status::ok) << result.method << " at " << length << ": " << result.reason;
    }
  }
}

TEST(BenchMeasure, AHiddenUnitThatRoundingCutsOffRefusesNobody) {
  // In bfloat16 some of the head's 256 units lie so near zero that a batch cuts them off and a part of it does not.
  auto settings = small({"linear", "softmax"});
  settings.kind = Kind::train_step;
  settings.sizes.d_ffn = 256;
  settings.passes = {Pass::step};
  settings.cases.clear();
  for (int64_t length = 104; length < 114; ++length) {
    settings.cases.push_back({length, 8, Precision::autocast, 1});
  }
  for (const auto& result : measure(settings, {})) {
    EXPECT_EQ(result.status, Status::ok) << result.method << " at " << result.one.length << ": " << result.reason;
  }
}

TEST(BenchMeasure, WhatDoesNotFitIsSkippedWithASentenceAndTheRestIsMeasured) {
  auto settings = small({"softmax:math"});
  settings.passes = {Pass::forward};
  settings.cases = {{int64_t{1} << 21, 1, Precision::float32, 1}, {16, 1, Precision::float32, 1}};
  const auto results = measure(settings, {});
  EXPECT_EQ(results.at(0).status, Status::skipped);
  EXPECT_THAT(results.at(0).reason, HasSubstr("are free"));
  EXPECT_EQ(results.at(1).status, Status::ok) << results.at(1).reason;
}

TEST(BenchMeasure, EveryPassThatDoesNotFitSaysWhatItNeedsItself) {
  auto settings = small({"softmax:math"});
  settings.passes = {Pass::forward, Pass::forward_backward};
  settings.cases = {{int64_t{1} << 21, 1, Precision::float32, 1}};
  const auto results = measure(settings, {});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results.at(1).status, Status::skipped);
  EXPECT_THAT(results.at(1).reason, HasSubstr("are free"));
  EXPECT_GT(results.at(1).cost.memory, results.at(0).cost.memory);
  EXPECT_NE(results.at(1).reason, results.at(0).reason);
}

TEST(BenchMeasure, MissingBaselineLeavesTheOthersTheirFigures) {
  auto settings = small({"softmax:cudnn", "dba"});  // no cuDNN on the CPU
  settings.passes = {Pass::forward};
  const auto results = measure(settings, {});
  EXPECT_EQ(results.at(0).status, Status::failed);
  EXPECT_THAT(results.at(0).reason, Not(IsEmpty()));
  EXPECT_EQ(results.at(1).status, Status::ok);
  EXPECT_TRUE(std::isnan(results.at(1).ratios.at(0)));
}

TEST(BenchMeasure, StoppedRunKeepsWhatItHas) {
  auto settings = small({"softmax", "dba"});
  settings.cases.push_back({16, 1, Precision::float32, 1});
  bool stop = false;
  Watcher watcher;
  watcher.progress = [&](int64_t done, int64_t) { stop = done >= 2; };
  watcher.stop = [&] { return stop; };
  const auto results = measure(settings, watcher);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[1].status, Status::ok);
  EXPECT_GT(results[1].ratios.at(0), 0);
}

}  // namespace
}  // namespace dba::bench

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/counts.h"
#include "dba/bytes/errors.h"
#include "plan/calibrate.h"
#include "plan/constants_file.h"
#include "plan/fused_range.h"
#include "plan/grid.h"
#include "plan/measure.h"
#include "plan/report.h"
#include "support/comparison.h"
#include "support/layouts.h"

namespace dba::test {
namespace {

using plan::Candidate;
using plan::Shape;
using ::testing::HasSubstr;

Shape text_shape() {
  Shape shape;
  shape.longest = 4096;
  shape.batch = 2;
  shape.tokens = 8192;
  return shape;
}

plan::Plan plan_of(const Shape& shape) {
  return plan::make_plan(shape, plan::default_constants(shape.device, shape.dtype));
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

struct OrderCase {
  Form form;
  Normalise normalise;
  bool per_sequence, bias, compress_width;
};

std::ostream& operator<<(std::ostream& stream, const OrderCase& one) {
  return stream << to_string(one.form) << (one.normalise == Normalise::linear ? " linear" : "")
                << (one.per_sequence ? " each" : "") << (one.bias ? "" : " nobias")
                << (one.compress_width ? "" : " wide");
}

class Orders : public ::testing::TestWithParam<OrderCase> {};

TEST_P(Orders, AgreeInValuesAndGradientsOverPackedSequences) {
  const auto& given = GetParam();
  Random random(7);
  for (const auto& lengths : {kLengths, kShortLengths, std::vector<int64_t>{0, 0}}) {
    const PackedBatch batch(lengths);
    DBAttention module(DBAttentionOptions(12, 3)
                           .d_p(4)
                           .d_in(5)
                           .form(given.form)
                           .normalise(given.normalise)
                           .bias(given.bias)
                           .compress_width(given.compress_width)
                           .z_update(ZUpdate::replace));
    module->to(at::kDouble);
    random.fill(*module);
    const at::Tensor x = random.leaf({batch.rows, 12});
    const at::Tensor z = given.per_sequence ? random.leaf({batch.count(), 4, 12}) : random.leaf({4, 12});
    const auto run = [&](Order order) {
      module->options.order(order);
      const auto output = module->forward(x, batch.sequences, z);
      return std::vector<Named>{{"y", output.y}, {"z", output.z}};
    };
    for (const Order order : {Order::projected, Order::direct, Order::automatic}) {
      SCOPED_TRACE(to_string(order));
      const auto expected = run(Order::two_pass);
      expect_same_function(run(order), {expected[0].tensor, expected[1].tensor},
                           with_parameters({{"x", x}, {"z", z}}, *module));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, Orders,
                         ::testing::Values(OrderCase{Form::paper, Normalise::softmax, false, true, true},
                                           OrderCase{Form::paper, Normalise::softmax, true, false, true},
                                           OrderCase{Form::paper, Normalise::linear, true, true, false},
                                           OrderCase{Form::released, Normalise::softmax, false, true, true},
                                           OrderCase{Form::released, Normalise::softmax, true, false, true}));

TEST(ProjectedOrder, NeverReadsPaddingNorLetsItReachAGradient) {
  Random random(8);
  const PackedBatch batch({3, 0, 6});
  for (const Form form : {Form::paper, Form::released}) {
    DBAttention module(DBAttentionOptions(8, 2).d_p(3).d_in(4).form(form).order(Order::projected));
    module->to(at::kDouble);
    random.fill(*module);
    const at::Tensor x = random.normal({9, 8}), z = random.normal({3, 8});
    const at::Tensor packed = module->forward(x, batch.sequences, z).y;
    module->zero_grad();
    packed.sum().backward();
    const at::Tensor expected = module->w_q->weight.grad().clone();
    module->zero_grad();
    const at::Tensor poisoned = padded(x, batch, 7, kNaN).requires_grad_();
    const at::Tensor y = module->forward(poisoned, padded_sequences(batch, 7), z).y;
    EXPECT_TRUE(close(unpadded(y, batch), packed));
    y.sum().backward();
    EXPECT_TRUE(close(module->w_q->weight.grad(), expected));
    EXPECT_TRUE(all_finite(poisoned.grad()));
  }
}

TEST(ProjectedOrder, WithDropoutIsTheTwoPasses) {
  Random random(9);
  DBAttention module(DBAttentionOptions(8, 2).d_p(3).d_in(4).dropout(0.4));
  module->to(at::kDouble);
  const at::Tensor x = random.normal({2, 7, 8}), z = random.normal({3, 8});
  const auto run = [&](Order order) {
    torch::manual_seed(3);
    module->options.order(order);
    return module->forward(x, std::nullopt, z).y;
  };
  const at::Tensor expected = run(Order::two_pass);
  EXPECT_TRUE(identical(run(Order::projected), expected));
  EXPECT_TRUE(close(run(Order::automatic), expected));
}

TEST(Order, HasNames) {
  for (const Order order : {Order::two_pass, Order::projected, Order::direct, Order::automatic}) {
    EXPECT_EQ(parse_order(to_string(order)), order);
  }
  expect_refusal([] { parse_order("sideways"); }, {"parse_order", "sideways", "projected"});
}

TEST(CostModel, CountsTheOperationsOfTheBenchmark) {
  for (const Form form : {Form::paper, Form::released}) {
    for (const bool training : {false, true}) {
      Shape shape = text_shape();
      shape.form = form;
      shape.training = training;
      shape.slots_per_sequence = true;  // the benchmark counts as if it were so
      bench::Sizes sizes;
      bench::Method method;
      method.attention = "dba";
      method.form = form;
      const auto expected = bench::cost_of(bench::Kind::layer, method, sizes, {4096, 2, bench::Precision::float32, 0},
                                           training ? bench::Pass::forward_backward : bench::Pass::forward, at::kCPU);
      EXPECT_NEAR(cost_of(shape, Candidate::fused).operations / expected.operations, 1.0, 1e-9);
    }
  }
}

TEST(CostModel, GrowsWithEverySize) {
  const std::vector<std::pair<const char*, std::function<void(Shape&)>>> larger = {
      {"length", [](Shape& s) { s.longest *= 2, s.tokens *= 2; }},
      {"batch", [](Shape& s) { s.batch *= 2, s.tokens *= 2; }},
      {"d", [](Shape& s) { s.d *= 2; }},
      {"d_p", [](Shape& s) { s.d_p *= 2; }},
      {"e", [](Shape& s) { s.e *= 2; }},
      {"training", [](Shape& s) { s.training = true; }},
      {"float64", [](Shape& s) { s.dtype = at::kDouble; }}};
  for (const auto& [name, enlarge] : larger) {
    for (const auto candidate : plan::kCandidates) {
      SCOPED_TRACE(std::string(name) + " " + to_string(candidate));
      const Shape small = text_shape();
      Shape large = small;
      enlarge(large);
      const auto before = cost_of(small, candidate), after = cost_of(large, candidate);
      EXPECT_LE(before.operations, after.operations);
      EXPECT_LE(before.bytes, after.bytes);
      EXPECT_LE(before.memory, after.memory);
      const auto seconds = [](const Shape& s, const plan::Cost& cost) {
        return plan::default_constants(s.device, s.dtype).time_of(cost.tally);
      };
      EXPECT_LT(seconds(small, before), seconds(large, after));
    }
  }
}

TEST(CostModel, KnowsWhenAThreadHasNothingToDo) {
  Shape shape = text_shape();
  const auto work = [&](int64_t sequences, int64_t length, int64_t threads) {
    shape.batch = sequences;
    shape.longest = length;
    shape.tokens = sequences * length;
    shape.threads = threads;
    return cost_of(shape, Candidate::fused).tally[static_cast<std::size_t>(plan::Engine::passes)][0];
  };
  EXPECT_DOUBLE_EQ(work(1, 72, 2), 2 * work(1, 72, 1));
  EXPECT_DOUBLE_EQ(work(64, 128, 2), work(64, 128, 1));
  EXPECT_DOUBLE_EQ(work(1, 16384, 2), work(1, 16384, 1));
}

/// By count, projecting first pays where d_p (H − 1) > d/2.
TEST(CostModel, ProjectingFirstSavesOperationsWhereHeadsAndSlotsAreMany) {
  Shape shape = text_shape();
  const auto saves = [&] {
    return cost_of(shape, Candidate::projected).operations < cost_of(shape, Candidate::fused).operations;
  };
  shape.d_p = 32;
  EXPECT_FALSE(saves());
  shape.d_p = 64;
  EXPECT_TRUE(saves());
  shape.d = 64;
  shape.heads = 8;
  shape.d_p = 16;
  EXPECT_TRUE(saves());
}

TEST(Choice, IsAPossibleCandidateAndNoneIsMuchFaster) {
  for (const auto& shape : plan::grid_shapes(at::kCPU, at::kFloat)) {
    const auto made = plan_of(shape);
    const auto& chosen = made.of(made.choice);
    EXPECT_TRUE(chosen.obstacle.empty());
    EXPECT_THAT(made.reason, HasSubstr(to_string(made.choice)));
    for (const auto& other : made.estimates) {
      EXPECT_TRUE(!other.obstacle.empty() || other.seconds >= 0.95 * chosen.seconds);
    }
  }
}

TEST(Choice, LeavesOutWhatWouldChangeTheFunction) {
  Shape shape = text_shape();
  shape.training = true;
  shape.dropout = 0.1;
  EXPECT_THAT(plan_of(shape).of(Candidate::projected).obstacle, HasSubstr("dropout"));
  shape.training = false;
  EXPECT_TRUE(plan_of(shape).of(Candidate::projected).obstacle.empty());
  shape.autocast = true;
  EXPECT_THAT(plan_of(shape).of(Candidate::direct).obstacle, HasSubstr("autocast"));
}

TEST(Choice, NeverWaitsForADevice) {
  Shape shape = text_shape();
  shape.device = at::kCUDA;
  shape.longest = -1;
  EXPECT_THAT(plan_of(shape).of(Candidate::direct).obstacle, HasSubstr("longest"));
}

TEST(Choice, FollowsTheBackend) {
  const BackendGuard guard(Backend::reference);
  const auto made = plan_of(text_shape());
  EXPECT_THAT(made.of(Candidate::fused).obstacle, HasSubstr("reference"));
  EXPECT_NE(made.choice, Candidate::fused);
  EXPECT_THAT(made.reason, HasSubstr("no fused kernel"));
}

TEST(Choice, TakesTheOrderWhoseConstantsAreCheapest) {
  const Shape shape = text_shape();
  auto constants = plan::default_constants(at::kCPU, at::kFloat);
  for (auto& seconds : constants.seconds[static_cast<std::size_t>(plan::Engine::passes)]) {
    seconds *= 1e3;
  }
  EXPECT_EQ(order_of(make_plan(shape, constants).choice) == Order::direct ||
                make_plan(shape, constants).choice == Candidate::reference,
            true);
  EXPECT_EQ(plan_of(shape).choice, Candidate::fused);
}

TEST(Crossover, IsTheLengthWhereThePredictionsMeet) {
  Shape shape = text_shape();
  const auto constants = plan::default_constants(at::kCPU, at::kFloat);
  const auto length = plan::crossover_length(shape, constants);
  ASSERT_TRUE(length.has_value());
  const auto faster = [&](int64_t n) {
    shape.longest = n;
    shape.batch = 8192 / n;
    shape.tokens = shape.batch * n;
    const auto made = make_plan(shape, constants);
    return made.of(made.choice).seconds < constants.time_of(plan::softmax_cost(shape).tally);
  };
  EXPECT_TRUE(faster(*length));
  EXPECT_TRUE(*length == 1 || !faster(*length - 1));

  auto slow = constants;
  for (const auto engine : {plan::Engine::passes, plan::Engine::plain}) {
    slow.seconds[static_cast<std::size_t>(engine)][0] *= 1e9;
  }
  slow.seconds[static_cast<std::size_t>(plan::Engine::plain)][0] = 0;  // the projections of softmax attention
  slow.seconds[static_cast<std::size_t>(plan::Engine::plain)][1] = 1;
  EXPECT_FALSE(plan::crossover_length(text_shape(), slow).has_value());
}

TEST(FusedRange, NamesWhatStandsInTheWay) {
  Shape shape = text_shape();
  EXPECT_EQ(fused_obstacle(shape), "");
  shape.dtype = at::kInt;
  EXPECT_THAT(fused_obstacle(shape), HasSubstr("Int"));
  shape.device = at::kCUDA;
  shape.dtype = at::kDouble;
  EXPECT_THAT(fused_obstacle(shape), HasSubstr("float64"));
  shape.dtype = at::kBFloat16;
  shape.d = 2048;
  EXPECT_THAT(fused_obstacle(shape), HasSubstr("2048"));
  shape.d = 256;
  shape.d_p = 257;
  EXPECT_THAT(fused_obstacle(shape), HasSubstr("257"));
  shape.d_p = 16;
  EXPECT_TRUE(hopper_obstacles(shape).empty());
  shape.d_p = 24;
  EXPECT_THAT(hopper_obstacles(shape), ::testing::ElementsAre(HasSubstr("power of two")));
  shape.dtype = at::kFloat;
  shape.d = 260;
  EXPECT_EQ(hopper_obstacles(shape).size(), 3u);
}

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

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/counts.h"
#include "dba/backend.h"
#include "ops/arguments.h"
#include "plan/fused_range.h"
#include "plan/grid.h"
#include "support/gpu_obstacle.h"
#include "support/plan_shapes.h"

namespace dba::test {
namespace {

using plan::Candidate;
using plan::Shape;
using ::testing::HasSubstr;

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
      EXPECT_TRUE(!other.obstacle.empty() || other.seconds >= 0.97 * chosen.seconds);
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

TEST(FusedRange, NamesTheSlotsThatHopperHasNoRoomFor) {
  Shape shape = text_shape();
  shape.device = at::kCUDA;
  shape.dtype = at::kBFloat16;
  for (const auto& [width, most] : {std::pair{64, 768}, std::pair{72, 320}, std::pair{128, 320}, std::pair{256, 128}}) {
    shape.d = width;
    shape.d_p = 64;
    shape.heads = most / 64;
    EXPECT_THAT(hopper_obstacles(shape), ::testing::IsEmpty()) << width;
    ++shape.heads;
    EXPECT_THAT(hopper_obstacles(shape), ::testing::ElementsAre(HasSubstr("up to " + std::to_string(most)))) << width;
  }
}

TEST(FusedRange, NamesWhenCoreGoesToTheReferenceInBackward) {
  Shape shape = text_shape();
  shape.device = at::kCUDA;
  shape.d_p = 256;
  EXPECT_EQ(core_obstacle(shape), "");
  shape.training = true;
  EXPECT_THAT(core_obstacle(shape), HasSubstr("256 slots need 562 KB"));
  for (const auto& [form, most] : {std::pair{Form::paper, 158}, std::pair{Form::released, 169}}) {
    shape.form = form;
    shape.d_p = most;
    EXPECT_EQ(core_obstacle(shape), "");
    shape.d_p = most + 1;
    EXPECT_THAT(core_obstacle(shape), HasSubstr("reference in backward"));
  }
}

TEST(FusedRange, NamesWhenFoldGoesToTheReference) {
  Shape shape = text_shape();
  shape.device = at::kCUDA;
  shape.batch = 65536;
  EXPECT_THAT(fold_obstacles(shape), ::testing::IsEmpty());
  shape.slots_per_sequence = true;
  EXPECT_THAT(fold_obstacles(shape), ::testing::ElementsAre(HasSubstr("in forward")));
  shape.training = true;
  EXPECT_THAT(fold_obstacles(shape), ::testing::ElementsAre(HasSubstr("in forward"), HasSubstr("in backward")));
  shape.device = at::kCPU;
  EXPECT_THAT(fold_obstacles(shape), ::testing::IsEmpty());
  shape.device = at::kCUDA;
  shape.batch = 65535;
  EXPECT_THAT(fold_obstacles(shape), ::testing::ElementsAre(HasSubstr("in backward")));
  // 2²⁵ numbers are 16 slots of 256, or of 4 · 6 in form `released`, for so many sequences.
  for (const auto& [form, most] : {std::pair{Form::paper, 8191}, std::pair{Form::released, 65535}}) {
    shape.form = form;
    shape.batch = most;
    EXPECT_THAT(fold_obstacles(shape), ::testing::IsEmpty());
  }
  shape.form = Form::paper;
  shape.batch = 8192;
  EXPECT_THAT(fold_obstacles(shape), ::testing::ElementsAre(HasSubstr("not 33554432")));
}

TEST(FusedRange, NamesWhenCoreGoesToTheReferenceForTheNumberOfSequences) {
  Shape shape = text_shape();
  shape.device = at::kCUDA;
  shape.batch = (1 << 21) - 1;
  EXPECT_EQ(core_obstacle(shape), "");
  ++shape.batch;
  EXPECT_THAT(core_obstacle(shape), HasSubstr("not 33554432"));
  shape.heads = 32;
  shape.batch = 1 << 20;
  EXPECT_THAT(core_obstacle(shape), HasSubstr("not 33554432"));
}

TEST(FusedRange, AGpuWithoutKernelsGoesToTheReferenceAndIsNamed) {
  const GpuObstacleGuard guard([] { return std::string("this GPU is too old"); });
  EXPECT_FALSE(ops::use_fused_on_gpu("compress", ""));
  {
    const BackendGuard fused(Backend::fused);
    try {
      ops::use_fused_on_gpu("compress", "");
      ADD_FAILURE() << "no error";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("dba::compress: backend is fused, but this GPU is too old"));
    }
  }
  Shape shape = text_shape();
  shape.device = at::kCUDA;
  shape.dtype = at::kBFloat16;
  const auto obstacle = fused_obstacle(shape);
  if (obstacle.find("libdba_cuda") != std::string::npos) {
    GTEST_SKIP() << "the planner asks for the GPU where the build has kernels for one";
  }
  EXPECT_EQ(obstacle, "this GPU is too old");
}

/// Keeps what is warned of.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    said.push_back(warning.msg());
  }
  std::vector<std::string> said;

 private:
  c10::WarningUtils::WarningHandlerGuard guard_{this};
  c10::WarningUtils::WarnAlways always_;
};

TEST(FusedRange, ABuildWithoutCudaKernelsWarnsOfGpuTensors) {
  // No GPU is needed for a tensor that says it lies on one.
  const at::Tensor on_gpu = at::detail::make_tensor<c10::TensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<float>(), c10::Device(at::kCUDA, 0));
  Warnings warnings;
  ops::require_reference_allowed("compress", at::empty({}));
  {
    const BackendGuard chosen(Backend::reference);
    ops::require_reference_allowed("compress", on_gpu);
  }
  EXPECT_THAT(warnings.said, ::testing::IsEmpty());
  ops::require_reference_allowed("compress", on_gpu);
  EXPECT_THAT(warnings.said, ::testing::ElementsAre(::testing::AllOf(HasSubstr("libdba_cuda, is not loaded"),
                                                                     HasSubstr("nvcc"), HasSubstr("wheel"))));
}

}  // namespace
}  // namespace dba::test

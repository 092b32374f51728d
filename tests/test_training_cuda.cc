#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dba/train/batches.h"
#include "dba/train/metrics.h"
#include "dba/train/model.h"
#include "dba/train/optimiser.h"
#include "support/kernels_on_gpu.h"
#include "support/small_sets.h"
#include "train/autocast_step.h"
#include "train/training_step.h"
#ifdef DBA_TEST_WITH_CUDA_HEADERS
#include <c10/cuda/CUDAFunctions.h>
#endif

/// Steps of training on a GPU. Everything here skips where there is no GPU.
namespace dba::test {
namespace {

class TrainingOnGpu : public KernelsOnGpu {
 protected:
  void SetUp() override {
    KernelsOnGpu::SetUp();
    torch::manual_seed(7);
  }
};

#ifdef DBA_TEST_WITH_CUDA_HEADERS
/// PyTorch throws at every wait for the device that it knows of.
class WaitingThrows {
 public:
  WaitingThrows() {
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  }
  ~WaitingThrows() {
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  }
};

TEST_F(TrainingOnGpu, ATrainingStepNeverWaitsForTheDevice) {
  dba::train::ModelPlan plan;
  plan.encoding.labels = dba::data::LabelSet({"a", "b"});
  plan.longest = 64;
  dba::train::Model model(plan);
  model.module().to(at::kCUDA);
  dba::train::Parameters parameters;
  for (const auto& parameter : model.module().named_parameters()) {
    parameters.emplace_back(parameter.key(), parameter.value());
  }
  const auto optimiser = dba::train::make_optimiser(plan.config.optimiser, parameters);
  const std::vector<dba::data::Encoded> examples{{{5, 6, 7, 8}, {}, {}, 0, false}, {{9, 10}, {}, {}, 1, false}};
  const auto batch = dba::train::collate(examples, plan.encoding, nullptr).pinned();
  dba::train::MetricCounter counter(2, at::kCUDA);
  const auto step = [&] {
    const dba::train::AutocastStep autocast(at::kCUDA, true);
    optimiser->zero_grad();
    const auto on_device = batch.to(at::Device(at::kCUDA, 0));
    const auto logits = model.forward(on_device);
    torch::nn::functional::cross_entropy(logits, on_device.labels).backward();
    dba::train::clip_gradients(parameters, 1.0);
    optimiser->step(1e-3);
    counter.add(logits, on_device.labels);
  };
  step();
  {
    const WaitingThrows guard;
    EXPECT_NO_THROW(step());
    EXPECT_THROW(counter.result(), c10::Error);
  }
}
#endif

/// Weights and sums of the log after some updates in bfloat16 with dropout, from data on the GPU.
std::vector<at::Tensor> train_on_gpu(const std::string& optimiser_name, bool recorded, bool equal_lengths) {
  const at::Device gpu(at::kCUDA, 0);
  const dba::train::testing_sets::SmallSet small(dba::data::Kind::tokens);
  auto plan = small.plan(0.2);
  plan.config.precision = "bfloat16";
  plan.config.optimiser.name = optimiser_name;
  torch::manual_seed(1);
  dba::train::Model model(plan);
  model.module().to(gpu);
  dba::train::Parameters parameters;
  for (const auto& parameter : model.module().named_parameters()) {
    parameters.emplace_back(parameter.key(), parameter.value());
  }
  const auto optimiser = dba::train::make_optimiser(plan.config.optimiser, parameters);
  dba::train::Window window(gpu);
  const auto first_bad = torch::full({}, -1, torch::dtype(at::kLong).device(gpu));
  const dba::train::ResidentSet set(small.set(), nullptr, gpu, dba::train::Rows::rounded);
  const auto recorder = dba::train::make_step_recorder();
  dba::train::TrainingStep step(plan.config, model, *optimiser, window, {}, first_bad, gpu);
  std::string refusal;
  if (recorded) {
    step.record_with(*recorder, [&](const std::string& reason) { refusal = reason; });
  }
  const auto stream = recorder->own_stream();
  int64_t update = 0;
  for (int round = 0; round < 12; ++round) {
    for (const auto& batch : small.batches()) {
      if (equal_lengths == (batch == small.batches().back())) {
        ++update;
        step.run(std::span(&batch, 1), set, update, 1e-2 / static_cast<double>(update));
      }
    }
  }
  EXPECT_EQ(refusal, "");
  EXPECT_EQ(step.repeated() > 0, recorded);
  std::vector<at::Tensor> results{window.loss, window.right, window.examples, first_bad};
  for (const auto& [name, parameter] : parameters) {
    results.push_back(parameter.detach());
  }
  for (auto& result : results) {
    result = result.cpu();
  }
  return results;
}

TEST_F(TrainingOnGpu, RecordedTrainingStepsGiveTheBitsOfStepsThatRunOneByOne) {
  if (!dba::train::make_step_recorder()) {
    GTEST_SKIP() << "needs a build with CUDA";
  }
  for (const auto* optimiser : {"adamw", "radam", "sgd"}) {
    for (const bool equal_lengths : {true, false}) {
      const auto plain = train_on_gpu(optimiser, /*recorded=*/false, equal_lengths);
      const auto recorded = train_on_gpu(optimiser, /*recorded=*/true, equal_lengths);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        EXPECT_TRUE(torch::equal(plain[i], recorded[i])) << optimiser << ", tensor " << i;
      }
    }
  }
}

TEST_F(TrainingOnGpu, RecordingThatFailsLeavesNothingBehindForTheNext) {
  const auto recorder = dba::train::make_step_recorder();
  if (!recorder) {
    GTEST_SKIP() << "needs a build with CUDA";
  }
  const auto stream = recorder->own_stream();
  const auto one = torch::ones({4}, at::kCUDA);
  const auto sum = torch::zeros_like(one);
  double expected = 0;
  const auto wait = [&] { one.sum().item<float>(); };  // no recording outlives it
  const auto refuse = [] { TORCH_CHECK(false, "refused"); };
  for (const std::function<void()>& fail : {std::function<void()>(wait), std::function<void()>(refuse)}) {
    torch::manual_seed(3);
    const auto random = torch::rand_like(one);
    torch::manual_seed(3);
    EXPECT_THROW(recorder->record([&] {
      sum.add_(torch::rand_like(one));
      fail();
    }),
                 c10::Error);
    EXPECT_TRUE(torch::equal(torch::rand_like(one), random));
    sum.add_(torch::ones({4}).pin_memory().to(at::kCUDA, /*non_blocking=*/true));
    const auto repeat = recorder->record([&] { sum.add_(one); });
    repeat();
    repeat();
    expected += 3;
    EXPECT_TRUE(torch::equal(sum, torch::full_like(sum, expected)));
  }
}

}  // namespace
}  // namespace dba::test

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dba/dba.h"
#include "dba/train/batches.h"
#include "dba/train/metrics.h"
#include "dba/train/model.h"
#include "dba/train/optimiser.h"
#include "nn/symbol_embedding.h"
#include "support/small_sets.h"
#include "train/autocast_step.h"
#include "train/training_step.h"
#ifdef DBA_TEST_WITH_CUDA_HEADERS
#include <c10/cuda/CUDAFunctions.h>
#endif

/// Modules on a GPU against the same modules on the CPU. Everything here skips where there is no GPU.
namespace {

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "needs a CUDA GPU";
    }
    torch::manual_seed(7);
  }
};

double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  const auto reference = expected.to(at::kCPU, at::kDouble);
  return ((got.to(at::kCPU, at::kDouble) - reference).norm() / (reference.norm() + 1e-30)).item<double>();
}

// Sequences of 100, 0, 1, 63 and 17 tokens, one behind the other.
at::Tensor bounds() {
  return torch::tensor({0, 100, 100, 101, 164, 181});
}
constexpr int64_t kRows = 181;

dba::ClassifierOptions classifier_options(const std::string& method, dba::Form form) {
  auto attention = dba::DBAttentionOptions(32, 4).form(form).d_p(5).d_in(12);
  auto layer = dba::EncoderLayerOptions(32, 4, 48).attention(method).attention_options(attention);
  return dba::ClassifierOptions(dba::EncoderOptions(layer, 3).slots_layer_norm(true), 6)
      .vocabulary(20)
      .max_length(128)
      .head(dba::HeadKind::mlp)
      .head_hidden(16);
}

void expect_same_on_both(const dba::ClassifierOptions& options) {
  dba::Classifier on_cpu(options);
  on_cpu->to(at::kDouble);
  auto on_gpu = std::dynamic_pointer_cast<dba::ClassifierImpl>(on_cpu->clone(at::Device(at::kCUDA)));
  const auto tokens = torch::randint(20, {kRows});
  const auto expected = on_cpu->forward(tokens, dba::Sequences::packed(bounds(), kRows));
  const auto got = on_gpu->forward(tokens.cuda(), dba::Sequences::packed(bounds().cuda(), kRows));
  EXPECT_LT(relative_error(got, expected), 1e-12);

  const auto direction = torch::randn_like(expected);
  (expected * direction).sum().backward();
  (got * direction.cuda()).sum().backward();
  // Some gradients vanish in exact arithmetic: all are measured against the largest.
  double largest = 0;
  for (const auto& parameter : on_cpu->parameters()) {
    largest = std::max(largest, parameter.grad().norm().item<double>());
  }
  const auto gradients = on_gpu->named_parameters();
  for (const auto& parameter : on_cpu->named_parameters()) {
    const auto error = (gradients[parameter.key()].grad().cpu() - parameter.value().grad()).norm().item<double>();
    EXPECT_LT(error, 1e-12 * largest) << parameter.key();
  }
}

TEST_F(OnGpu, ClassifiersComputeWhatTheyComputeOnTheCpu) {
  expect_same_on_both(classifier_options("dba", dba::Form::paper));
  expect_same_on_both(classifier_options("dba", dba::Form::released));
  expect_same_on_both(classifier_options("softmax", dba::Form::paper));
}

TEST_F(OnGpu, DropoutDrawsTheSameMaskAndTwoPassAgreesWithDirect) {
  auto options = dba::DBAttentionOptions(32, 4).d_p(5).d_in(12).dropout(0.3).z_update(dba::ZUpdate::own);
  dba::DBAttention two_pass(options);
  two_pass->to(at::kDouble);
  two_pass->to(at::kCUDA);
  auto direct = std::dynamic_pointer_cast<dba::DBAttentionImpl>(two_pass->clone());
  direct->options.order(dba::Order::direct);
  const auto x = torch::randn({kRows, 32}, at::kDouble).cuda();
  const auto sequences = dba::Sequences::packed(bounds().cuda(), kRows, 100);
  torch::manual_seed(3);
  const auto got = two_pass->forward(x, sequences).y;
  torch::manual_seed(3);
  const auto expected = direct->forward(x, sequences).y;
  EXPECT_LT(relative_error(got, expected), 1e-12);
}

TEST_F(OnGpu, SoftmaxAttentionTakesPaddedMaskedAndPackedBatches) {
  dba::SoftmaxAttention on_cpu(64, 4);
  on_cpu->to(at::kDouble);
  const auto x = torch::randn({kRows, 64}, at::kDouble);
  const auto expected = on_cpu->forward(x, dba::Sequences::packed(bounds(), kRows)).y;
  auto on_gpu = std::dynamic_pointer_cast<dba::SoftmaxAttentionImpl>(on_cpu->clone(at::Device(at::kCUDA)));
  EXPECT_LT(relative_error(on_gpu->forward(x.cuda(), dba::Sequences::packed(bounds().cuda(), kRows)).y, expected),
            1e-12);
  // bfloat16 with a known longest sequence takes the flash kernel for varying lengths.
  on_gpu->to(at::kBFloat16);
  const auto packed = dba::Sequences::packed(bounds().cuda(), kRows, 100);
  EXPECT_LT(relative_error(on_gpu->forward(x.cuda().to(at::kBFloat16), packed).y, expected), 2e-2);
  // Rows behind the last sequence, which the flash kernel leaves unwritten, reach neither result nor gradients.
  const auto gradient = [&](int64_t trailing) {
    const auto longer = torch::cat({x, torch::ones({trailing, 64}, at::kDouble)}).cuda().to(at::kBFloat16);
    on_gpu->zero_grad();
    const auto y = on_gpu->forward(longer, dba::Sequences::packed(bounds().cuda(), kRows + trailing, 100)).y;
    EXPECT_EQ(y.narrow(0, kRows, trailing).count_nonzero().item<int64_t>(), 0);
    std::vector<at::Tensor> poison;
    for (int i = 0; i < 8; ++i) {
      poison.push_back(torch::full_like(longer, NAN));
    }
    poison.clear();
    y.sum().backward();
    return on_gpu->w_k->weight.grad().clone();
  };
  EXPECT_LT(relative_error(gradient(50), gradient(0)), 2e-2);
}

TEST_F(OnGpu, HalfPrecisionAndAutocastStayCloseToDouble) {
  const auto options = dba::DBAttentionOptions(64, 4).z_update(dba::ZUpdate::own);
  dba::DBAttention exact(options);
  exact->to(at::kDouble);
  const auto x = torch::randn({kRows, 64}, at::kDouble);
  const auto sequences = dba::Sequences::packed(bounds().cuda(), kRows);
  const auto expected = exact->forward(x, dba::Sequences::packed(bounds(), kRows)).y;
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    auto module = std::dynamic_pointer_cast<dba::DBAttentionImpl>(exact->clone(at::Device(at::kCUDA)));
    module->to(type);
    const auto y = module->forward(x.cuda().to(type), sequences).y;
    EXPECT_EQ(y.scalar_type(), type);
    EXPECT_LT(relative_error(y, expected), type == at::kFloat ? 1e-5 : 2e-2);
  }
  auto module = std::dynamic_pointer_cast<dba::DBAttentionImpl>(exact->clone(at::Device(at::kCUDA)));
  module->to(at::kFloat);
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  const auto y = module->forward(x.cuda().to(at::kFloat), sequences).y;
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_LT(relative_error(y, expected), 2e-2);
}

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

TEST_F(OnGpu, ATrainingStepNeverWaitsForTheDevice) {
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

TEST_F(OnGpu, RecordedTrainingStepsGiveTheBitsOfStepsThatRunOneByOne) {
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

TEST_F(OnGpu, RecordingThatFailsLeavesNothingBehindForTheNext) {
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

TEST_F(OnGpu, GradientsOfSymbolsAreTheSumsOfTheirRows) {
  const auto symbols = torch::randint(30, {3 * 4096 + 5}).clamp_min(20);
  const auto direction = torch::randn({symbols.size(0), 16}).to(at::kBFloat16);
  const auto exact = torch::zeros({30, 16}, at::kDouble).index_add_(0, symbols, direction.to(at::kDouble));
  const auto error = [&](auto embed) {
    auto weight = torch::randn({30, 16}).cuda().requires_grad_();
    const dba::train::AutocastStep autocast(at::kCUDA, true);
    const auto rows = embed(weight, symbols.cuda());
    EXPECT_EQ(rows.scalar_type(), at::kBFloat16);
    rows.backward(direction.cuda());
    EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
    return relative_error(weight.grad(), exact);
  };
  const auto plain = error(
      [](const at::Tensor& weight, const at::Tensor& all) { return torch::embedding(weight.to(at::kBFloat16), all); });
  EXPECT_LE(error(dba::embed_symbols), plain);
}

TEST_F(OnGpu, BoundsAreCheckedInDebugMode) {
  dba::set_debug_checks(true);
  EXPECT_THROW(dba::Sequences::packed(torch::tensor({0, 5, 3}).cuda(), 5), c10::Error);
  dba::set_debug_checks(false);
}

}  // namespace

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dba/dba.h"
#include "nn/symbol_embedding.h"
#include "support/gpu_obstacle.h"
#include "train/autocast_step.h"
#include "zoo/agreement.h"

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

TEST_F(OnGpu, MasksAndCountsOfCodesAreTheSameWithoutKernels) {
  const auto rng = torch::tensor({int64_t{7}, int64_t{2}}), sequence = torch::tensor({int64_t{0}, int64_t{3}});
  const auto codes = torch::randint(-3, 3, {2, 5, 9}, at::kShort), keys = torch::randint(-3, 3, {2, 9, 70}, at::kShort);
  const auto run = [&](at::Device device) {
    const auto place = sequence.to(device);
    return std::pair(
        dba::ops::dropout_mask({0.3, rng.to(device)}, dba::ops::kSiteCore, place, place, 13, 5, at::kFloat),
        dba::zoo::agreement(codes.to(device), keys.to(device), at::kFloat));
  };
  const auto [mask, counts] = run(at::kCPU);
  const auto expect_same = [&, mask = mask, counts = counts] {
    const auto [mask_on_gpu, counts_on_gpu] = run(at::kCUDA);
    EXPECT_TRUE(at::equal(mask_on_gpu.cpu(), mask));
    EXPECT_TRUE(at::equal(counts_on_gpu.cpu(), counts));
  };
  expect_same();
  const dba::test::GpuObstacleGuard guard([] { return std::string("this GPU is too old"); });
  expect_same();
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

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dba/backend.h"
#include "dba/nn/encoder_layer.h"
#include "support/residual_inputs.h"

namespace dba::test {
namespace {

class ResidualNorm : public ::testing::TestWithParam<ResidualForm> {};

TEST_P(ResidualNorm, IsItsDefinitionForAnyShape) {
  for (const Backend backend : {Backend::reference, Backend::fused})
    for (const int64_t rows : {0, 1, 3, 4, 63, 130})
      for (const int64_t d : {3, 8, 20, 65})
        for (const double p : {0.0, 0.3}) {
          SCOPED_TRACE(to_string(backend) + ", " + std::to_string(rows) + " × " + std::to_string(d) + ", p " +
                       std::to_string(p));
          const BackendGuard guard(backend);
          if (GetParam() == ResidualForm::norm_alone && p > 0)
            continue;
          const ResidualInputs given(GetParam(), rows, d, p, 1);
          std::vector<Named> actual;
          for (const at::Tensor& output : given.run())
            actual.push_back({"output", output});
          expect_same_function(actual, given.plain(), given.named());
        }
}

TEST_P(ResidualNorm, ErrsAtMostTwiceAsMuchAsPlainPyTorch) {
  const std::vector<std::pair<at::ScalarType, at::ScalarType>> types = {{at::kFloat, at::kFloat},
                                                                        {at::kHalf, at::kHalf},
                                                                        {at::kBFloat16, at::kBFloat16},
                                                                        {at::kFloat, at::kHalf},
                                                                        {at::kFloat, at::kBFloat16}};
  for (const Backend backend : {Backend::reference, Backend::fused})
    for (const auto& [residual, branch] : types)
      for (const double p : {0.0, 0.3}) {
        SCOPED_TRACE(to_string(backend) + ", " + c10::toString(residual) + " with " + c10::toString(branch));
        const BackendGuard guard(backend);
        expect_error_of_plain(ResidualInputs(GetParam(), 201, 100, p, 2).as(residual, branch));
      }
}

TEST_P(ResidualNorm, HasTheSameBitsForAnyNumberOfThreads) {
  const BackendGuard guard(Backend::fused);
  const auto given = ResidualInputs(GetParam(), 1003, 33, 0.3, 3).as(at::kFloat, at::kFloat);
  const int before = at::get_num_threads();
  std::vector<Named> first;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    const auto all = given.values_and_gradients(given.run());
    if (first.empty())
      first = all;
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(identical(all[i].tensor, first[i].tensor)) << all[i].name << ", " << threads << " threads";
  }
  at::set_num_threads(before);
}

TEST_P(ResidualNorm, TakesRowsThatAreNotSideBySide) {
  for (const Backend backend : {Backend::reference, Backend::fused}) {
    const BackendGuard guard(backend);
    const ResidualInputs given(GetParam(), 21, 12, 0.3, 4);
    ResidualInputs scattered = given;
    scattered.residual = given.residual.detach().t().contiguous().t().requires_grad_(true);
    scattered.branch = at::cat({given.branch, given.branch}, 1).detach().slice(1, 0, 12).requires_grad_(true);
    const auto wanted = given.values_and_gradients(given.run());
    const auto got = scattered.values_and_gradients(scattered.run());
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_TRUE(close(got[i].tensor, wanted[i].tensor)) << wanted[i].name;
  }
}

/// In deterministic mode PyTorch fills fresh memory with NaN: whatever is read before it is written shows.
TEST_P(ResidualNorm, ReadsNoFreshMemory) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  const BackendGuard guard(Backend::fused);
  for (const int64_t rows : {0, 1, 130}) {
    const ResidualInputs given(GetParam(), rows, 20, 0.3, 5);
    for (const Named& named : given.values_and_gradients(given.run()))
      EXPECT_TRUE(all_finite(named.tensor)) << named.name;
  }
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

INSTANTIATE_TEST_SUITE_P(Forms, ResidualNorm, ::testing::ValuesIn(kResidualForms), form_name);

TEST(ResidualSum, DropsOutByTheMaskOfItsSite) {
  const ops::Dropout dropout{0.3, at::tensor({int64_t{5}, int64_t{6}}, at::kLong)};
  const auto zero = at::zeros({1}, at::kLong);
  const auto mask = ops::dropout_mask(dropout, ops::kSiteResidual, zero, zero, 37, 19, at::kFloat).squeeze(0);
  for (const Backend backend : {Backend::reference, Backend::fused}) {
    const BackendGuard guard(backend);
    EXPECT_TRUE(identical(ops::residual_sum(at::zeros({37, 19}), {at::ones({37, 19}), {}, dropout}), mask));
  }
}

/// A row of one number has no variance: at::layer_norm leaves a rounding error times 1/√eps, the operator nothing.
TEST(ResidualNormOfOneColumn, IsTheBias) {
  for (const Backend backend : {Backend::reference, Backend::fused}) {
    const BackendGuard guard(backend);
    const ResidualInputs given(ResidualForm::norm, 9, 1, 0.0, 10);
    EXPECT_TRUE(identical(given.run()[0], given.bias.expand({9, 1})));
  }
}

TEST(ResidualNormGradients, AgreeWithCentralDifferences) {
  const ResidualInputs given(ResidualForm::sum_and_norm, 7, 5, 0.3, 6);
  expect_gradients(
      given.named(), [&] { return random_projection(given.run(), 8); }, 9);
}

TEST(ResidualNormAutocast, LeavesTheResidualAndCastsTheBranch) {
  const auto x = at::randn({6, 8});
  const ops::LayerNormWeights norm{at::ones({8}), at::zeros({8})};
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto both = ops::residual_sum_and_norm(x, {at::randn({6, 8})}, norm);
  const auto post = ops::residual_norm(both.y, {at::randn({6, 8})}, norm);
  const auto alone = ops::layer_norm(x, norm);
  const auto sum = ops::residual_sum(x, {both.y});
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(both.sum.scalar_type(), at::kFloat);
  EXPECT_EQ(both.y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(post.scalar_type(), at::kBFloat16);
  EXPECT_EQ(alone.scalar_type(), at::kBFloat16);
  EXPECT_EQ(sum.scalar_type(), at::kFloat);
}

TEST(ResidualNormChecks, SayWhatIsWrong) {
  const auto x = at::randn({6, 8});
  const ops::LayerNormWeights norm{at::ones({8}), at::zeros({8})};
  expect_refusal([&] { ops::residual_norm(x, {at::randn({6, 7})}, norm); }, {"residual_norm", "branch", "(6, 8)"});
  expect_refusal([&] { ops::residual_norm(x, {x.to(at::kDouble)}, norm); }, {"branch", "residual's type", "cast"});
  expect_refusal([&] { ops::residual_norm(x, {x, at::randn({7})}, norm); }, {"branch_bias", "(8)", "(7)"});
  expect_refusal([&] { ops::residual_norm(x, {x}, {at::ones({9}), {}}); }, {"weight", "(8)", "(9)"});
  expect_refusal([&] { ops::residual_sum(x, {x, {}, {0.5, {}}}); }, {"residual_sum", "rng", "Dropout::draw"});
  expect_refusal([&] { ops::residual_sum(x.to(at::kLong), {x}); }, {"residual", "floating type"});
  expect_refusal([&] { ops::layer_norm(x, norm, at::kDouble); }, {"dtype", "residual's type"});
}

class BlockOfBothOrders : public ::testing::TestWithParam<bool> {};

TEST_P(BlockOfBothOrders, IsThePlainCompositionWithTheMasksItDraws) {
  constexpr int64_t d = 12;
  constexpr double p = 0.3;
  ResidualBlock block(EncoderLayerOptions(d, 2, 20).norm_first(GetParam()).dropout(p));
  block->to(at::kDouble);
  Random random(11);
  random.fill(*block);
  const auto x = random.leaf({9, d}), attended = random.leaf({9, d});
  torch::manual_seed(3);
  const auto y = block->forward(x, attended, {});
  torch::manual_seed(3);
  const auto zero = at::zeros({1}, at::kLong);
  const auto drop = [&](const at::Tensor& values) {
    const auto dropout = ops::Dropout::draw(p, at::kCPU);
    return values * ops::dropout_mask(dropout, ops::kSiteResidual, zero, zero, 9, d, at::kDouble).squeeze(0);
  };
  const auto norm = [&](const TokenNorm& n, const at::Tensor& v) {
    return at::layer_norm(v, {d}, n->weight, n->bias, 1e-5);
  };
  const auto feed_forward = [&](const at::Tensor& v) { return block->linear_2(at::gelu(block->linear_1(v))); };
  const auto sum = x + drop(attended);
  at::Tensor expected;
  if (GetParam()) {
    expected = sum + drop(feed_forward(norm(block->ffn_norm, sum)));
  } else {
    const auto normed = norm(block->attention_norm, sum);
    expected = norm(block->ffn_norm, normed + drop(feed_forward(normed)));
  }
  expect_same_function({{"y", y}}, {expected}, with_parameters({{"x", x}, {"attended", attended}}, *block));
}

INSTANTIATE_TEST_SUITE_P(Orders, BlockOfBothOrders, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "norm_first" : "norm_last"; });

}  // namespace
}  // namespace dba::test

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "dba/backend.h"
#include "dba/nn/encoder_layer.h"
#include "ops/normal_tail.h"
#include "support/activate_inputs.h"

namespace dba::test {
namespace {

using ops::ActivationKind;

class Activate : public ::testing::TestWithParam<ActivationKind> {};

TEST_P(Activate, IsItsDefinitionForAnyShape) {
  for (const Backend backend : {Backend::reference, Backend::fused})
    for (const int64_t rows : {0, 1, 3, 4, 63, 130})
      for (const int64_t d : {1, 3, 8, 65})
        for (const double p : {0.0, 0.3}) {
          SCOPED_TRACE(to_string(backend) + ", " + std::to_string(rows) + " × " + std::to_string(d) + ", p " +
                       std::to_string(p));
          const BackendGuard guard(backend);
          const ActivateInputs given(GetParam(), rows, d, p, 1);
          expect_same_function({{"output", given.run()}}, {given.plain()}, given.named());
          const ActivateInputs bare = given.without_bias();
          expect_same_function({{"output without bias", bare.run()}}, {bare.plain()}, bare.named());
        }
}

/// Four of these rows are more than one piece of a tile.
TEST_P(Activate, IsItsDefinitionForWideRows) {
  const BackendGuard guard(Backend::fused);
  const ActivateInputs given(GetParam(), 6, 7503, 0.3, 2);
  expect_same_function({{"output", given.run()}}, {given.plain()}, given.named());
}

TEST_P(Activate, ErrsAtMostTwiceAsMuchAsPlainPyTorch) {
  const std::vector<std::pair<at::ScalarType, at::ScalarType>> types = {{at::kFloat, at::kFloat},
                                                                        {at::kHalf, at::kHalf},
                                                                        {at::kBFloat16, at::kBFloat16},
                                                                        {at::kHalf, at::kFloat},
                                                                        {at::kBFloat16, at::kFloat}};
  for (const Backend backend : {Backend::reference, Backend::fused})
    for (const auto& [type, bias] : types)
      for (const double p : {0.0, 0.3}) {
        SCOPED_TRACE(to_string(backend) + ", " + c10::toString(type) + " with " + c10::toString(bias));
        const BackendGuard guard(backend);
        expect_error_of_plain(ActivateInputs(GetParam(), 201, 100, p, 3).as(type, bias));
      }
}

TEST_P(Activate, HasTheSameBitsForAnyNumberOfThreads) {
  const BackendGuard guard(Backend::fused);
  const int before = at::get_num_threads();
  for (const int64_t d : {33, 9001}) {
    const auto given = ActivateInputs(GetParam(), d == 33 ? 1003 : 7, d, 0.3, 4).as(at::kFloat, at::kFloat);
    std::vector<Named> first;
    for (const int threads : {1, 2, 3}) {
      at::set_num_threads(threads);
      const auto all = given.values_and_gradients(given.run());
      if (first.empty())
        first = all;
      for (size_t i = 0; i < all.size(); ++i)
        EXPECT_TRUE(identical(all[i].tensor, first[i].tensor)) << all[i].name << ", " << threads << " threads";
    }
  }
  at::set_num_threads(before);
}

TEST_P(Activate, TakesRowsThatAreNotSideBySide) {
  for (const Backend backend : {Backend::reference, Backend::fused}) {
    const BackendGuard guard(backend);
    const ActivateInputs given(GetParam(), 21, 12, 0.3, 5);
    ActivateInputs scattered = given;
    scattered.hidden = given.hidden.detach().t().contiguous().t().requires_grad_(true);
    scattered.bias = at::stack({given.bias, given.bias}, 1).detach().select(1, 0).requires_grad_(true);
    const auto wanted = given.values_and_gradients(given.run());
    const auto got = scattered.values_and_gradients(scattered.run());
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_TRUE(close(got[i].tensor, wanted[i].tensor)) << wanted[i].name;
  }
}

/// In deterministic mode PyTorch fills fresh memory with NaN: whatever is read before it is written shows.
TEST_P(Activate, ReadsNoFreshMemory) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  const BackendGuard guard(Backend::fused);
  for (const int64_t rows : {0, 1, 130}) {
    const ActivateInputs given(GetParam(), rows, 20, 0.3, 6);
    for (const Named& named : given.values_and_gradients(given.run()))
      EXPECT_TRUE(all_finite(named.tensor)) << named.name;
  }
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

TEST_P(Activate, LetsNaNThrough) {
  for (const Backend backend : {Backend::reference, Backend::fused}) {
    const BackendGuard guard(backend);
    const auto y = ops::activate(at::full({5, 3}, std::numeric_limits<float>::quiet_NaN()), {}, GetParam());
    EXPECT_TRUE(y.isnan().all().item<bool>());
  }
}

TEST_P(Activate, HasGradientsThatAgreeWithCentralDifferences) {
  const ActivateInputs given(GetParam(), 7, 5, 0.3, 7);
  expect_gradients(
      given.named(), [&] { return random_projection({given.run()}, 8); }, 9);
}

TEST_P(Activate, RefusesDoubleBackward) {
  const ActivateInputs given(GetParam(), 3, 4, 0.0, 10);
  expect_refusal(
      [&] {
        torch::autograd::grad({given.run().sum()}, {given.hidden}, {}, /*retain_graph=*/true, /*create_graph=*/true);
      },
      {"activate", "double backward", "not supported", "at::dropout"});
}

INSTANTIATE_TEST_SUITE_P(Kinds, Activate, ::testing::ValuesIn(kActivationKinds), kind_name);

TEST(ActivateDropout, DropsOutByTheMaskOfItsSite) {
  const ops::Dropout dropout{0.3, at::tensor({int64_t{5}, int64_t{6}}, at::kLong)};
  const auto zero = at::zeros({1}, at::kLong);
  const auto mask = ops::dropout_mask(dropout, ops::kSiteActivation, zero, zero, 37, 69, at::kFloat).squeeze(0);
  for (const Backend backend : {Backend::reference, Backend::fused}) {
    const BackendGuard guard(backend);
    EXPECT_TRUE(identical(ops::activate(at::ones({37, 69}), {}, ActivationKind::relu, dropout), mask));
  }
}

TEST(ActivateAutocast, KeepsTheTypeOfHidden) {
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto wide = ops::activate(at::randn({6, 8}), at::randn({8}), ActivationKind::gelu);
  const auto half = ops::activate(at::randn({6, 8}).to(at::kBFloat16), at::randn({8}), ActivationKind::gelu);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(wide.scalar_type(), at::kFloat);
  EXPECT_EQ(half.scalar_type(), at::kBFloat16);
}

TEST(ActivateChecks, SayWhatIsWrong) {
  const auto x = at::randn({6, 8});
  const auto relu = ActivationKind::relu;
  expect_refusal([&] { ops::activate(x[0], {}, relu); }, {"activate", "hidden"});
  expect_refusal([&] { ops::activate(x.to(at::kLong), {}, relu); }, {"hidden", "floating type"});
  expect_refusal([&] { ops::activate(x, at::randn({7}), relu); }, {"bias", "(8)", "(7)"});
  expect_refusal([&] { ops::activate(x, at::randn({8}).to(at::kDouble), relu); }, {"activate", "bias"});
  expect_refusal([&] { ops::activate(x, {}, relu, {0.5, {}}); }, {"activate", "rng", "Dropout::draw"});
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("dba::activate", "")
                      .typed<at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&, std::string_view, double,
                                        const std::optional<at::Tensor>&)>();
  expect_refusal([&] { op.call(x, {}, "tanh", 0.0, {}); }, {"activate", "kind", "gelu", "relu", "tanh"});
}

/// What the kernels for half types use in place of the error function.
TEST(NormalTail, IsAsCloseAsItSays) {
  float before = std::numeric_limits<float>::infinity();
  for (int i = 0; i <= 16000; ++i) {
    const float a = static_cast<float>(i) * 1e-3f;
    const double exact = 0.5 * std::erfc(static_cast<double>(a) / std::sqrt(2.0));
    const float power = normal_tail_log2(a);
    const double tail = std::exp2(static_cast<double>(power));
    if (a <= 6.5f)
      EXPECT_LT(std::abs(tail - exact), 1e-5 * exact) << a;
    else
      EXPECT_LT(a * std::abs(tail - exact), 2e-14) << a;
    EXPECT_LT(power, before) << a;
    before = power;
  }
  EXPECT_LT(normal_tail_log2(kNormalTailEnd), -149.0f);
}

class FeedForwardOfBothKinds : public ::testing::TestWithParam<Activation> {};

TEST_P(FeedForwardOfBothKinds, IsThePlainCompositionWithTheMasksItDraws) {
  constexpr int64_t d = 12, hidden = 20, rows = 9;
  constexpr double outer = 0.2, inner = 0.4;
  ResidualBlock block(
      EncoderLayerOptions(d, 2, hidden).activation(GetParam()).dropout(outer).activation_dropout(inner));
  block->to(at::kDouble);
  Random random(11);
  random.fill(*block);
  const auto x = random.leaf({rows, d}), attended = random.leaf({rows, d});
  const auto zero = at::zeros({1}, at::kLong);
  const auto norm = [&](const TokenNorm& n, const at::Tensor& v) {
    return at::layer_norm(v, {d}, n->weight, n->bias, 1e-5);
  };
  for (const bool training : {true, false}) {
    block->train(training);
    torch::manual_seed(3);
    const auto y = block->forward(x, attended, {});
    torch::manual_seed(3);
    const auto drop = [&](double p, ops::Site site, const at::Tensor& v) {
      const auto dropout = ops::Dropout::draw(training ? p : 0.0, at::kCPU);
      return v * ops::dropout_mask(dropout, site, zero, zero, rows, v.size(1), at::kDouble).squeeze(0);
    };
    const auto normed = norm(block->attention_norm, x + drop(outer, ops::kSiteResidual, attended));
    const auto before = block->linear_1(normed);
    const auto active =
        drop(inner, ops::kSiteActivation, GetParam() == Activation::gelu ? at::gelu(before) : at::relu(before));
    const auto expected = norm(block->ffn_norm, normed + drop(outer, ops::kSiteResidual, block->linear_2(active)));
    expect_same_function({{"y", y}}, {expected}, with_parameters({{"x", x}, {"attended", attended}}, *block));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, FeedForwardOfBothKinds, ::testing::Values(Activation::gelu, Activation::relu),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace dba::test

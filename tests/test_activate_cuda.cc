#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "dba/backend.h"
#include "support/activate_inputs.h"

/// The CUDA kernels of dba/activate.h. Everything here skips where there is no GPU.
namespace dba::test {
namespace {

class ActivateOnGpu : public ::testing::TestWithParam<ops::ActivationKind> {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available())
      GTEST_SKIP() << "needs a CUDA GPU";
  }
  const BackendGuard guard{Backend::fused};
};

const std::vector<std::pair<at::ScalarType, at::ScalarType>> kActivateTypes = {
    {at::kDouble, at::kDouble},     {at::kFloat, at::kFloat}, {at::kHalf, at::kHalf},
    {at::kBFloat16, at::kBFloat16}, {at::kHalf, at::kFloat},  {at::kBFloat16, at::kFloat}};

/// Widths of one thread, of part of a warp, of whole warps, of several blocks; odd ones between.
TEST_P(ActivateOnGpu, ErrsAtMostTwiceAsMuchAsPlainPyTorchForAnyShape) {
  for (const auto& [type, bias] : kActivateTypes)
    for (const int64_t d : {3, 8, 40, 100, 257, 1024, 1040, 4099})
      for (const int64_t rows : {0, 1, 5, 301})
        for (const double p : {0.0, 0.3}) {
          SCOPED_TRACE(std::string(c10::toString(type)) + " with " + c10::toString(bias) + ", " + std::to_string(rows) +
                       " × " + std::to_string(d) + ", p " + std::to_string(p));
          const auto given = ActivateInputs(GetParam(), rows, d, p, 1);
          expect_error_of_plain(given.as(type, bias, at::kCUDA));
          if (d == 40)
            expect_error_of_plain(given.without_bias().as(type, bias, at::kCUDA));
        }
}

TEST_P(ActivateOnGpu, HasTheSameBitsEveryTime) {
  const auto given = ActivateInputs(GetParam(), 20003, 256, 0.3, 2).as(at::kBFloat16, at::kFloat, at::kCUDA);
  const auto first = given.values_and_gradients(given.run());
  for (int repetition = 0; repetition < 30; ++repetition) {
    const auto again = given.values_and_gradients(given.run());
    for (size_t i = 0; i < first.size(); ++i)
      ASSERT_TRUE(identical(again[i].tensor, first[i].tensor)) << first[i].name;
  }
}

TEST_P(ActivateOnGpu, TakesRowsThatAreNotSideBySideOrAligned) {
  const ActivateInputs given = ActivateInputs(GetParam(), 21, 16, 0.3, 3).as(at::kFloat, at::kFloat, at::kCUDA);
  // Sixteen bytes no longer begin where a row does.
  const auto shifted = [](const at::Tensor& t) {
    return at::cat({at::zeros({1}, t.options()), t.detach().flatten()}).slice(0, 1).view(t.sizes());
  };
  ActivateInputs scattered = given, unaligned = given, unaligned_bias = given;
  scattered.hidden = given.hidden.detach().t().contiguous().t().requires_grad_(true);
  unaligned.hidden = shifted(given.hidden).requires_grad_(true);
  unaligned_bias.bias = shifted(given.bias).requires_grad_(true);
  const auto wanted = given.values_and_gradients(given.run());
  for (const ActivateInputs& other : {scattered, unaligned, unaligned_bias}) {
    const auto got = other.values_and_gradients(other.run());
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_TRUE(identical(got[i].tensor, wanted[i].tensor)) << wanted[i].name;
  }
}

TEST_P(ActivateOnGpu, ReadsNoFreshMemory) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  for (const int64_t d : {20, 256}) {
    const auto given = ActivateInputs(GetParam(), 1003, d, 0.3, 4).as(at::kBFloat16, at::kFloat, at::kCUDA);
    for (const Named& named : given.values_and_gradients(given.run()))
      EXPECT_TRUE(all_finite(named.tensor)) << named.name;
  }
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

TEST_P(ActivateOnGpu, LetsNaNAndInfinityThrough) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const auto y = [&](double x) {
      return ops::activate(at::full({5, 16}, x, at::TensorOptions(at::kCUDA).dtype(type)), {}, GetParam());
    };
    EXPECT_TRUE(y(std::numeric_limits<double>::quiet_NaN()).isnan().all().item<bool>()) << type;
    EXPECT_TRUE(y(kInfinity).eq(kInfinity).all().item<bool>()) << type;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ActivateOnGpu, ::testing::ValuesIn(kActivationKinds), kind_name);

/// Every number of the type from −20 to 20: the value errs by its rounding and 2e-5 of itself, the slope by its
/// rounding and 2e-5.
TEST(GeluOfHalfTypesOnGpu, IsTheErrorFunctionsUpToItsBound) {
  if (!torch::cuda::is_available())
    GTEST_SKIP() << "needs a CUDA GPU";
  const BackendGuard guard(Backend::fused);
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    const auto bits = at::arange(1 << 16, at::kInt).to(at::kShort).view(type);
    const auto x = bits.masked_select(bits.to(at::kDouble).abs() <= 20.0).view({-1, 1});
    const auto narrow = x.cuda().requires_grad_(true);
    const auto y = ops::activate(narrow, {}, ops::ActivationKind::gelu);
    const auto slope = torch::autograd::grad({y}, {narrow}, {at::ones_like(y)})[0].to(at::kCPU, at::kDouble);
    const auto wide = x.to(at::kDouble).requires_grad_(true);
    // x Φ(x) without the cancellation that 1 + erf(x) suffers from.
    const auto exact = 0.5 * wide * at::erfc(-wide / std::sqrt(2.0));
    const auto exact_slope = torch::autograd::grad({exact}, {wide}, {at::ones_like(exact)})[0];
    const double half_unit = type == at::kHalf ? 0x1p-11 : 0x1p-8;
    const double smallest = type == at::kHalf ? 0x1p-25 : 1e-13;
    const auto error = (y.to(at::kCPU, at::kDouble) - exact).abs();
    EXPECT_TRUE((error <= (half_unit + 2e-5) * exact.abs() + smallest).all().item<bool>()) << type;
    const auto slope_error = (slope - exact_slope).abs();
    EXPECT_TRUE((slope_error <= half_unit * exact_slope.abs() + 2e-5).all().item<bool>()) << type;
  }
}

TEST(ActivateMaskOnGpu, IsThatOfTheCpu) {
  if (!torch::cuda::is_available())
    GTEST_SKIP() << "needs a CUDA GPU";
  const BackendGuard guard(Backend::fused);
  const auto rng = at::tensor({int64_t{5}, int64_t{6}}, at::kLong);
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble})
    for (const int64_t d : {19, 256}) {
      const auto ones = at::ones({37, d}, type);
      EXPECT_TRUE(identical(ops::activate(ones.cuda(), {}, ops::ActivationKind::relu, {0.3, rng.cuda()}).cpu(),
                            ops::activate(ones, {}, ops::ActivationKind::relu, {0.3, rng})));
    }
}

}  // namespace
}  // namespace dba::test

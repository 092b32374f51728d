#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dba/backend.h"
#include "dba/nn/encoder_layer.h"
#include "support/residual_inputs.h"

/// The CUDA kernels of dba/residual_norm.h. Everything here skips where there is no GPU.
namespace dba::test {
namespace {

class ResidualNormOnGpu : public ::testing::TestWithParam<ResidualForm> {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available())
      GTEST_SKIP() << "needs a CUDA GPU";
  }
  const BackendGuard guard{Backend::fused};
};

const std::vector<std::pair<at::ScalarType, at::ScalarType>> kResidualTypes = {
    {at::kDouble, at::kDouble},     {at::kFloat, at::kFloat}, {at::kHalf, at::kHalf},
    {at::kBFloat16, at::kBFloat16}, {at::kFloat, at::kHalf},  {at::kFloat, at::kBFloat16}};

/// Widths of one thread, of part of a warp, of a warp, of several warps, of the widest row; odd ones between.
TEST_P(ResidualNormOnGpu, ErrsAtMostTwiceAsMuchAsPlainPyTorchForAnyShape) {
  for (const auto& [residual, branch] : kResidualTypes)
    for (const int64_t d : {3, 7, 8, 40, 100, 256, 257, 768, 1024})
      for (const int64_t rows : {0, 1, 5, 301})
        for (const double p : {0.0, 0.3}) {
          SCOPED_TRACE(std::string(c10::toString(residual)) + " with " + c10::toString(branch) + ", " +
                       std::to_string(rows) + " × " + std::to_string(d) + ", p " + std::to_string(p));
          const auto given = ResidualInputs(GetParam(), rows, d, GetParam() == ResidualForm::norm_alone ? 0.0 : p, 1);
          expect_error_of_plain(given.as(residual, branch, at::kCUDA));
        }
}

TEST_P(ResidualNormOnGpu, TakesTheWidestRow) {
  expect_error_of_plain(ResidualInputs(GetParam(), 9, 2048, 0.0, 2).as(at::kBFloat16, at::kBFloat16, at::kCUDA));
  expect_error_of_plain(ResidualInputs(GetParam(), 9, 2047, 0.0, 2).as(at::kFloat, at::kBFloat16, at::kCUDA));
}

TEST_P(ResidualNormOnGpu, HasTheSameBitsEveryTime) {
  const auto p = GetParam() == ResidualForm::norm_alone ? 0.0 : 0.3;
  const auto given = ResidualInputs(GetParam(), 20003, 256, p, 3).as(at::kBFloat16, at::kBFloat16, at::kCUDA);
  const auto first = given.values_and_gradients(given.run());
  for (int repetition = 0; repetition < 30; ++repetition) {
    const auto again = given.values_and_gradients(given.run());
    for (size_t i = 0; i < first.size(); ++i)
      ASSERT_TRUE(identical(again[i].tensor, first[i].tensor)) << first[i].name;
  }
}

TEST_P(ResidualNormOnGpu, TakesRowsThatAreNotSideBySideOrAligned) {
  const ResidualInputs given = ResidualInputs(GetParam(), 21, 16, 0.0, 4).as(at::kFloat, at::kFloat, at::kCUDA);
  ResidualInputs scattered = given;
  scattered.residual = given.residual.detach().t().contiguous().t().requires_grad_(true);
  // Sixteen bytes no longer begin where a row does.
  const auto shifted = at::cat({at::zeros({1}, given.branch.options()), given.branch.detach().flatten()});
  scattered.branch = shifted.slice(0, 1).view({21, 16}).requires_grad_(true);
  const auto wanted = given.values_and_gradients(given.run());
  const auto got = scattered.values_and_gradients(scattered.run());
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_TRUE(identical(got[i].tensor, wanted[i].tensor)) << wanted[i].name;
}

TEST_P(ResidualNormOnGpu, ReadsNoFreshMemory) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  for (const int64_t d : {20, 256}) {
    const auto p = GetParam() == ResidualForm::norm_alone ? 0.0 : 0.3;
    const auto given = ResidualInputs(GetParam(), 1003, d, p, 5).as(at::kBFloat16, at::kBFloat16, at::kCUDA);
    for (const Named& named : given.values_and_gradients(given.run()))
      EXPECT_TRUE(all_finite(named.tensor)) << named.name;
  }
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

INSTANTIATE_TEST_SUITE_P(Forms, ResidualNormOnGpu, ::testing::ValuesIn(kResidualForms), form_name);

TEST(ResidualMaskOnGpu, IsThatOfTheCpu) {
  if (!torch::cuda::is_available())
    GTEST_SKIP() << "needs a CUDA GPU";
  const BackendGuard guard(Backend::fused);
  const auto rng = at::tensor({int64_t{5}, int64_t{6}}, at::kLong);
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble})
    for (const int64_t d : {19, 256}) {
      const auto zeros = at::zeros({37, d}, type), ones = at::ones({37, d}, type);
      EXPECT_TRUE(identical(ops::residual_sum(zeros.cuda(), {ones.cuda(), {}, {0.3, rng.cuda()}}).cpu(),
                            ops::residual_sum(zeros, {ones, {}, {0.3, rng}})));
    }
}

}  // namespace
}  // namespace dba::test

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dba/backend.h"
#include "dba/ops.h"
#include "support/core_on_gpu.h"

/// The CUDA kernels of `core` against the reference in double. Everything here skips where there is no GPU.
namespace dba::test {
namespace {

/// Widths that load as vectors and widths that do not, few and many rows, one slot and many, all batch sizes.
const std::vector<CoreShape> kShapes = {
    {0, 2, 3, 16, 3, 8, true, 0.25},      {1, 4, 16, 256, 6, 256, true, 0.0},  {2, 1, 1, 16, 5, 6, true, 0.25},
    {7, 2, 3, 18, 3, 10, false, 0.25},    {7, 8, 16, 64, 3, 64, true, 0.1},    {64, 4, 16, 64, 6, 64, true, 0.0},
    {3, 2, 40, 24, 7, 16, true, 0.25},    {2, 2, 64, 128, 12, 40, false, 0.2}, {2, 32, 5, 64, 1, 32, true, 0.0},
    {1, 1, 100, 1024, 24, 64, true, 0.0}, {513, 2, 16, 32, 4, 32, true, 0.25}, {301, 2, 16, 128, 6, 128, true, 0.1}};

const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kBFloat16, at::kHalf};

TEST_F(CoreOnGpu, IsTheReferenceInEveryFormShapeAndType) {
  uint64_t seed = 100;
  for (const CoreShape& shape : kShapes) {
    for (const CoreKind& kind : core_kinds()) {
      for (const at::ScalarType type : kTypes) {
        SCOPED_TRACE(::testing::Message() << kind.name << " " << shape << " " << c10::toString(type));
        const CoreCase given(shape, kind, type, ++seed);
        poison_memory();
        expect_twice_as_close(given.run(), given.reference(), given.exact(), given.names(), given.allowance());
      }
    }
  }
}

TEST_F(CoreOnGpu, ThirtyRepetitionsGiveTheSameBits) {
  for (const CoreKind& kind : core_kinds()) {
    for (const at::ScalarType type : kTypes) {
      for (const int64_t head_width : {16, 64}) {
        SCOPED_TRACE(::testing::Message() << kind.name << " " << c10::toString(type) << " " << head_width);
        const CoreCase given({133, 4, 16, 4 * head_width, 6, 4 * head_width, true, 0.25}, kind, type, 7);
        const auto first = given.run();
        for (int repetition = 0; repetition < 30; ++repetition) {
          poison_memory();
          const auto again = given.run();
          for (size_t i = 0; i < first.size(); ++i)
            ASSERT_TRUE(identical(again[i], first[i])) << given.names()[i];
        }
      }
    }
  }
}

TEST_F(CoreOnGpu, AbsentGradientsCountAsZeros) {
  for (const CoreKind& kind : core_kinds()) {
    SCOPED_TRACE(kind.name);
    const CoreCase given({5, 2, 3, 16, 3, 8, true, 0.25}, kind, at::kFloat, 8);
    const auto zeros_m = at::zeros_like(given.dm), zeros_compressed = at::zeros_like(given.dcompressed);
    const auto names = given.names();
    const auto expect_same = [&](const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(identical(got[i], expected[i])) << names[i + 2];
    };
    expect_same(given.backward(given.dm, {}), given.backward(given.dm, zeros_compressed));
    expect_same(given.backward({}, given.dcompressed), given.backward(zeros_m, given.dcompressed));
  }
}

TEST_F(CoreOnGpu, TakesStridedSummariesAndWeightsOfMixedTypes) {
  for (const CoreKind& kind : core_kinds()) {
    SCOPED_TRACE(kind.name);
    CoreCase given({4, 2, 5, 32, 3, 24, true, 0.25}, kind, at::kBFloat16, 9);
    given.weights.value_weight = given.weights.value_weight.to(at::kFloat);
    given.weights.out_weight = given.weights.out_weight.t().contiguous().t();
    given.c = given.c.transpose(0, 1).contiguous().transpose(0, 1);
    given.r = given.r.t().contiguous().t();
    given.dm = given.dm.transpose(1, 2).contiguous().transpose(1, 2);
    const auto got = given.run();
    expect_twice_as_close(got, given.reference(), given.exact(), given.names(), given.allowance());
    size_t i = 4;
    for (const auto member : ops::core_weight_members()) {
      if ((given.weights.*member).defined()) {
        EXPECT_EQ(got[i++].scalar_type(), (given.weights.*member).scalar_type());
      }
    }
  }
}

/// More slots than a block's shared memory holds, and double: the reference serves.
TEST_F(CoreOnGpu, WhatIsBeyondTheKernelsFallsBack) {
  for (const CoreKind& kind : core_kinds()) {
    SCOPED_TRACE(kind.name);
    const CoreCase wide({1, 4, 256, 64, 6, 16, true, 0.25}, kind, at::kFloat, 10);
    expect_twice_as_close(wide.run(), wide.reference(), wide.exact(), wide.names(), wide.allowance());
    CoreCase exact({3, 2, 3, 16, 3, 8, true, 0.25}, kind, at::kDouble, 11);
    for (auto* tensor : {&exact.c, &exact.r, &exact.dm, &exact.dcompressed})
      *tensor = tensor->to(at::kDouble);
    const auto got = exact.run();
    const auto expected = exact.exact();
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(close(got[i].cpu(), expected[i])) << exact.names()[i];
  }
}

/// Through autograd, with the mask that the reference on the same device draws.
TEST_F(CoreOnGpu, IsDifferentiable) {
  const CoreCase given({3, 2, 5, 32, 3, 24, true, 0.25}, core_kinds().front(), at::kFloat, 12);
  const auto gradients = [&] {
    const auto c = given.c.detach().requires_grad_(true);
    const auto weight = given.weights.query_weight.detach().requires_grad_(true);
    ops::CoreWeights weights = given.weights;
    weights.query_weight = weight;
    const auto result = ops::core(c, given.r, weights, given.heads, given.dropout);
    return torch::autograd::grad({(result.m * given.dm).sum() + (result.c * given.dcompressed).sum()}, {c, weight});
  };
  const auto fused = gradients();
  const BackendGuard guard(Backend::reference);
  const auto plain = gradients();
  for (size_t i = 0; i < fused.size(); ++i)
    EXPECT_TRUE(close(fused[i].cpu(), plain[i].cpu(), 1e-5));
}

}  // namespace
}  // namespace dba::test

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dba/ops.h"
#include "ops/reference/reference.h"
#include "support/core_on_gpu.h"
#ifdef DBA_TEST_WITH_CUDA_HEADERS
#include "support/recorded_kernels.h"
#endif

/// The kernels that do all of `core` in one launch. Everything here skips where there is no GPU.
namespace dba::test {
namespace {

/// 16 slots and heads of 64 columns. The number of sequences decides how many of them a thread block has, and whether
/// each of its teams has one.
const std::vector<CoreShape> kShapesOfOneLaunch = {
    {0, 2, 16, 128, 3, 128, true, 0.0},  {1, 4, 16, 256, 9, 256, true, 0.0},   {2, 1, 16, 64, 3, 64, false, 0.0},
    {7, 4, 16, 256, 9, 48, true, 0.0},   {133, 4, 16, 256, 9, 256, true, 0.0}, {301, 2, 16, 128, 3, 128, true, 0.0},
    {512, 4, 16, 256, 3, 256, true, 0.0}};

/// Sequences drawn on the GPU, whatever their number, and the weights of a CoreCase; every third sequence is empty: its
/// summaries are 0. Like what a layer before it leaves, `other` is float32.
CoreCase drawn_on_gpu(const CoreShape& shape, const CoreKind& kind, at::ScalarType type, uint64_t seed) {
  CoreShape one = shape;
  one.batch = 1;
  CoreCase given(one, kind, type, seed);
  torch::manual_seed(seed);
  const auto draw = [&](at::Tensor& tensor) {
    auto sizes = tensor.sizes().vec();
    sizes.front() = shape.batch;
    tensor = at::randn(sizes, at::device(at::kCUDA).dtype(at::kFloat));
  };
  draw(given.c);
  draw(given.r);
  for (auto* tensor : {&given.c, &given.r})
    tensor->slice(0, 1, std::nullopt, 3).zero_();
  if (kind.cross) {
    draw(given.weights.other);
    given.weights.other = given.weights.other.to(type).to(at::kFloat);
  }
  return given;
}

/// The reference is computed on the GPU as well: in double 512 sequences take a CPU seconds.
TEST_F(CoreOnGpu, OneLaunchServesAnyNumberOfSequences) {
  uint64_t seed = 500;
  for (const CoreShape& shape : kShapesOfOneLaunch) {
    for (const CoreKind& kind : core_kinds()) {
      for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
        SCOPED_TRACE(::testing::Message() << kind.name << " " << shape << " " << c10::toString(type));
        const CoreCase given = drawn_on_gpu(shape, kind, type, ++seed);
        const auto run = [&] { return ops::core(given.c, given.r, given.weights, given.heads); };
        poison_memory();
        const auto got = run();
        const auto plain = [&](at::ScalarType in) {
          const auto options = at::device(at::kCUDA).dtype(in);
          const auto result = ops::reference::core(given.c.to(options), given.r.to(options), given.weights_as(options),
                                                   given.heads, {});
          return std::vector<at::Tensor>{result.m, result.c};
        };
        expect_twice_as_close({got.m, got.c}, plain(at::kHalf), plain(at::kDouble), {"m", "compressed"},
                              given.allowance());
#ifdef DBA_TEST_WITH_CUDA_HEADERS
        // GPUs before Hopper have too little shared memory for some of these shapes, and no kernel for form `released`.
        if (compute_capability_major() == 9) {
          const bool step_by_step = kind.released && (kind.cross || shape.heads == 1);
          const auto kernels = kernels_launched(run);
          if (shape.batch == 0) {
            EXPECT_EQ(kernels, 0);
          } else if (step_by_step) {
            EXPECT_GT(kernels, 1);
          } else {
            EXPECT_EQ(kernels, 1);
          }
        }
#endif
      }
    }
  }
}

}  // namespace
}  // namespace dba::test

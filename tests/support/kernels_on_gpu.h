#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "dba/backend.h"
#include "support/comparison.h"

namespace dba::test {

/// Skips where there is no GPU; each test begins with the kernels that the GPU is served with otherwise.
class KernelsOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "needs a CUDA GPU";
    }
    set_cuda_kernels(CudaKernels::automatic);
  }
  void TearDown() override {
    set_cuda_kernels(CudaKernels::automatic);
  }
};

/// Leaves NaN in the memory that PyTorch hands out next.
inline void poison_memory() {
  std::vector<at::Tensor> blocks;
  for (int64_t size = 512; size <= int64_t{1} << 22; size *= 2) {
    for (int i = 0; i < 4; ++i)
      blocks.push_back(at::full({size}, std::numeric_limits<float>::quiet_NaN(), at::device(at::kCUDA)));
  }
}

/// ‖got − exact‖ in double, where the exact result lies.
inline double distance(const at::Tensor& got, const at::Tensor& exact) {
  return (got.to(exact.device(), at::kDouble) - exact.to(at::kDouble)).norm().item<double>();
}

/// Every result is at most twice as far from the exact one as the plain composition in the same precision is. The
/// floor, one rounding of the largest result, is for what vanishes in exact arithmetic.
inline void expect_twice_as_close(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& plain,
                                  const std::vector<at::Tensor>& exact, const std::vector<std::string>& names,
                                  at::ScalarType type) {
  ASSERT_EQ(got.size(), exact.size());
  const double rounding = type == at::kFloat ? 6e-8 : type == at::kHalf ? 5e-4 : 4e-3;
  double largest = 0.0;
  for (const auto& tensor : exact)
    largest = std::max(largest, tensor.norm().item<double>());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].sizes(), exact[i].sizes()) << names[i];
    EXPECT_TRUE(all_finite(got[i])) << names[i];
    EXPECT_LE(distance(got[i], exact[i]), 2.0 * distance(plain[i], exact[i]) + rounding * largest) << names[i];
  }
}

}  // namespace dba::test

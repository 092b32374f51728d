#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "dba/backend.h"
#include "support/comparison.h"
#include "support/error_rule.h"

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

/// What some results are allowed beside the rule, by name.
struct Allowance {
  /// Times the reference's error; 2 where nothing is said.
  std::map<std::string, double> times;
  /// Results that are 0 in exact arithmetic, and those that are summed from the same terms, which cancel in the first:
  /// a rounding of the second is the floor.
  std::map<std::string, std::string> vanishing;
};

/// Every result is at most twice as far from the exact one as that of the library's reference in the same types is,
/// beside a rounding of its own type and norm.
///
/// DBA_ERROR_TABLE=FILE appends a line for each: name, type, error and that of the reference over ‖exact‖, error over
/// that of the reference, error over what is allowed (tests/python/error_rule.py has the same rule and table).
inline void expect_twice_as_close(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& plain,
                                  const std::vector<at::Tensor>& exact, const std::vector<std::string>& names,
                                  const Allowance& allowance = {}) {
  ASSERT_EQ(got.size(), exact.size());
  std::map<std::string, double> norms;
  for (size_t i = 0; i < exact.size(); ++i)
    norms[names[i]] = exact[i].norm().item<double>();
  for (size_t i = 0; i < got.size(); ++i) {
    const std::string& name = names[i];
    ASSERT_EQ(got[i].sizes(), exact[i].sizes()) << name;
    EXPECT_TRUE(all_finite(got[i])) << name;
    double times = 2.0, scale = norms[name];
    if (const auto found = allowance.times.find(name); found != allowance.times.end())
      times = found->second;
    if (const auto found = allowance.vanishing.find(name); found != allowance.vanishing.end()) {
      scale = norms.at(found->second);
      EXPECT_LE(norms[name], 1e-9 * scale) << name << " does not vanish";
    }
    const double error = distance(got[i], exact[i]), reference = distance(plain[i], exact[i]);
    const double allowed = times * reference + rounding_of(got[i].scalar_type()) * scale;
    EXPECT_LE(error, allowed) << name << ", of " << scale << "; the reference errs by " << reference;
    if (const char* const path = std::getenv("DBA_ERROR_TABLE"); path != nullptr) {
      const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
      const auto ratio = [](double a, double b) { return a == 0 ? 0.0 : a / b; };
      std::ofstream(path, std::ios::app) << test->test_suite_name() << '.' << test->name() << ' ' << name << ' '
                                         << c10::toString(got[i].scalar_type()) << ' ' << ratio(error, scale) << ' '
                                         << ratio(reference, scale) << ' ' << ratio(error, reference) << ' '
                                         << ratio(error, allowed) << '\n';
    }
  }
}

}  // namespace dba::test

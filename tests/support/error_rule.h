#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

namespace dba::test {

/// The most that rounding to the type takes from a number; of float four times that, for its long sums.
inline double rounding_of(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16:
      return 1.0 / 256;
    case at::kHalf:
      return 1.0 / 2048;
    case at::kFloat:
      return 1.0 / (1 << 22);
    default:
      return 1e-14;
  }
}

/// Rounded to eighths: small numbers are then the same in every type.
inline at::Tensor in_every_type(const at::Tensor& numbers) {
  return (numbers * 8).round() / 8;
}

/// Against double arithmetic on the same numbers, an operator errs at most twice as much as plain PyTorch in the same
/// types does, and by the rounding of the result: in a handful of numbers plain PyTorch may have luck.
inline void expect_error_of_plain(const at::Tensor& got, const at::Tensor& plain, const at::Tensor& exact,
                                  const std::string& name) {
  const auto truth = exact.to(at::kCPU, at::kDouble);
  const auto error = [&](const at::Tensor& t) { return (t.to(at::kCPU, at::kDouble) - truth).norm().item<double>(); };
  EXPECT_LE(error(got), 2 * error(plain) + rounding_of(got.scalar_type()) * truth.norm().item<double>()) << name;
}

}  // namespace dba::test

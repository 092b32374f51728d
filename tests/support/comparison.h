#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/cases.h"

namespace dba::test {

struct Named {
  std::string name;
  at::Tensor tensor;
};

/// Two orders of the same products in double.
inline constexpr double kExact = 1e-12;

/// ‖actual − expected‖ ≤ tolerance · max(‖expected‖, floor), compared in double; same shape. Says the worst entry. The
/// floor is for what vanishes in exact arithmetic.
::testing::AssertionResult close(const at::Tensor& actual, const at::Tensor& expected, double tolerance = kExact,
                                 double floor = 1e-2);
/// Same shape, same dtype, same bits (any NaN equals any other).
::testing::AssertionResult identical(const at::Tensor& actual, const at::Tensor& expected);
::testing::AssertionResult all_finite(const at::Tensor& t);

/// The logarithms of sums, 0 in the place of those of no terms.
inline at::Tensor finite_part(const at::Tensor& lse) {
  return lse.masked_fill(lse.isinf(), 0.0);
}

/// Every parameter of the module, after the tensors in front.
std::vector<Named> with_parameters(std::vector<Named> inputs, const torch::nn::Module& module);

/// A scalar that depends on every entry of all outputs: Σ output ∘ fixed random numbers.
at::Tensor random_projection(const std::vector<at::Tensor>& outputs, uint64_t seed);

/// The outputs agree, and so do the gradients of one random projection of them for every input.
void expect_same_function(const std::vector<Named>& actual, const std::vector<at::Tensor>& expected,
                          const std::vector<Named>& inputs, double tolerance = kExact);

/// The gradient of `loss` agrees with central differences (of fourth order, in double) along random directions: three
/// of all inputs together and, `one_by_one`, one of every input alone. `loss` reads the inputs, which are leaves.
void expect_gradients(const std::vector<Named>& inputs, const std::function<at::Tensor()>& loss, uint64_t seed,
                      bool one_by_one = true);

/// `call` throws, and the message holds every one of `words`, whatever their case.
void expect_refusal(const std::function<void()>& call, const std::vector<std::string>& words);

}  // namespace dba::test

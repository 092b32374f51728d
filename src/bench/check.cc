#include "bench/check.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace dba::bench {
namespace {

constexpr double kTimesPlain = 4.0;
/// The output of a classifier is a handful of numbers, which plain PyTorch may hit by chance.
constexpr double kFewNumbers = 16.0;
/// A gradient smaller than this share of all of them is measured against that share.
constexpr double kSmallShare = 1e-2;
/// One whose float64 value is below this share is zero in exact arithmetic (b_K, for one). What a precision leaves of
/// it is the rounding of terms as large as the others, so it is measured against all.
constexpr double kZeroShare = 1e-10;

struct Errors {
  double output = 0.0;
  double gradient = 0.0;
};

/// Beyond these a number is wrong, whatever plain PyTorch manages.
double largest_error(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return 1e-8;
    case at::kFloat:
      return 1e-2;
    case at::kHalf:
      return 0.1;
    default:
      return 0.25;
  }
}

double smallest_error(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kFloat:
      return std::numeric_limits<float>::epsilon();
    case at::kHalf:
      return 0x1p-10;
    default:
      return 0x1p-7;
  }
}

/// How long a sequence the truth can afford: memory and time of float64, for softmax attention with the whole map.
int64_t longest_check(const Method& method, at::Device device) {
  if (method.linear_in_length()) {
    return device.is_cpu() ? 32'768 : 1'048'576;
  }
  return device.is_cpu() ? 2'048 : 8'192;
}

double norm_of(const at::Tensor& tensor) {
  return tensor.to(at::kDouble).norm().item<double>();
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return norm_of(a.to(at::kDouble) - b.to(at::kDouble));
}

Errors errors_of(const Work::Values& actual, const Work::Values& exact) {
  Errors errors;
  errors.output = distance(actual.y, exact.y) / norm_of(exact.y);
  double all = 0.0;
  for (const auto& gradient : exact.gradients) {
    all = std::hypot(all, gradient.defined() ? norm_of(gradient) : 0.0);
  }
  for (size_t i = 0; i < exact.gradients.size(); ++i) {
    if (!exact.gradients[i].defined() || !actual.gradients[i].defined()) {
      continue;
    }
    const double norm = norm_of(exact.gradients[i]);
    const double scale = norm < kZeroShare * all ? all : std::max(norm, kSmallShare * all);
    const double error = distance(actual.gradients[i], exact.gradients[i]) / scale;
    errors.gradient = std::isnan(error) ? error : std::max(errors.gradient, error);
    if (std::isnan(errors.gradient)) {
      break;
    }
  }
  return errors;
}

std::string complaint(const char* what, double error, double allowed) {
  char text[160];
  std::snprintf(text, sizeof text, "the %s is wrong: relative error %.2e against float64, allowed %.2e", what, error,
                allowed);
  return text;
}

}  // namespace

Verdict check(Work& work, const Case& one, bool gradients, int64_t most) {
  const auto device = work.input().device();
  const auto affordable = longest_check(work.method(), device);
  const auto longest = most < 0 ? affordable : std::min(most, affordable);
  Verdict verdict;
  verdict.length = std::min(one.length, longest);
  const auto input = work.input().narrow(1, 0, verdict.length).contiguous();
  const bool classifier = !input.is_floating_point();  // symbols in, numbers of classes out
  std::vector<int64_t> chosen = {0};
  if (one.batch > 1 && 2 * verdict.length <= longest) {
    chosen.push_back(one.batch - 1);
  }
  const auto picked = torch::tensor(chosen, torch::TensorOptions(at::kLong).device(device));
  const auto few = input.index_select(0, picked);

  Work truth(work, truth_of(work.method()), Precision::float64);
  Work plain(work, plain_of(work.method()), one.precision);
  const auto exact_input = classifier ? few : few.to(at::kDouble);
  at::Tensor dy, few_dy, exact_dy;
  if (gradients) {
    auto sizes = classifier ? std::vector<int64_t>{few.size(0), kClasses} : few.sizes().vec();
    few_dy = torch::randn(sizes, torch::TensorOptions(device)).to(storage_type(one.precision));
    sizes[0] = one.batch;
    dy = few_dy.new_zeros(sizes).index_copy_(0, picked, few_dy);
    exact_dy = few_dy.to(at::kDouble);
  }
  const auto exact = truth.evaluate(exact_input, exact_dy);
  const auto yardstick = errors_of(plain.evaluate(few, few_dy), exact);
  auto values = work.evaluate(input, dy);
  values.y = values.y.index_select(0, picked);
  if (gradients && !classifier) {
    values.gradients[0] = values.gradients[0].index_select(0, picked);
  }
  const auto errors = errors_of(values, exact);

  verdict.output_error = errors.output;
  verdict.right = true;
  // A member of the zoo has one path, which is the yardstick itself; hashes and inverses may well turn a rounding into
  // something large, and hashes not in the same places: batches round otherwise than the yardstick's few sequences.
  // Nor does the ReLU of a classifier's head cut off the same units in both, where they lie near zero.
  const auto type = compute_type(one.precision);
  const bool half = type == at::kHalf || type == at::kBFloat16;
  const double rounding = smallest_error(type), large = largest_error(type);
  const double most_error = work.method().of_zoo() ? std::numeric_limits<double>::infinity() : large;
  const auto judge = [&](const char* what, double error, double plain_error, double least) {
    const double always = work.method().hashes() ? large : least;
    const double allowed = std::min(std::max(kTimesPlain * plain_error, always), most_error);
    if (verdict.right && !(error <= allowed)) {
      verdict.right = false;
      verdict.reason = complaint(what, error, allowed);
    }
  };
  judge("output", errors.output, yardstick.output, classifier ? kFewNumbers * rounding : rounding);
  if (gradients) {
    verdict.gradient_error = errors.gradient;
    judge("gradient", errors.gradient, yardstick.gradient, classifier && half ? large : rounding);
  }
  return verdict;
}

}  // namespace dba::bench

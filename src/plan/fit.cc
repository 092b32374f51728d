#include "plan/fit.h"

#include <algorithm>
#include <cmath>

namespace dba::plan {
namespace {

constexpr std::size_t kConstants = kEngines * kUnits;
/// A constant may differ from its start by this factor: beyond it the samples say nothing of it.
constexpr double kMostTimes = 30.0;
/// The weight of staying at the start, against samples of weight one each.
constexpr double kInertia = 3e-4;
constexpr int kSweeps = 20'000;

using Row = std::array<double, kConstants>;

/// The share of each constant in the sample's time, at the start: the unknowns are factors of the starting constants.
Row shares(const Sample& sample, const Constants& start) {
  Row row{};
  for (std::size_t i = 0; i < kConstants; ++i) {
    const auto engine = i / kUnits, unit = i % kUnits;
    row[i] = sample.counts[engine][unit] * start.seconds[engine][unit] / sample.seconds;
  }
  return row;
}

}  // namespace

Constants fit(const std::vector<Sample>& samples, const Constants& start) {
  // Least squares of Σ row · factor = 1 over factors within bounds, by coordinate descent on the normal equations.
  std::array<Row, kConstants> products{};
  Row sums{};
  for (const auto& sample : samples) {
    const auto row = shares(sample, start);
    for (std::size_t i = 0; i < kConstants; ++i) {
      sums[i] += row[i];
      for (std::size_t j = 0; j < kConstants; ++j) {
        products[i][j] += row[i] * row[j];
      }
    }
  }
  const double inertia = kInertia * static_cast<double>(std::max<std::size_t>(samples.size(), 1));
  Row factors;
  factors.fill(1.0);
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (std::size_t i = 0; i < kConstants; ++i) {
      double rest = sums[i] + inertia;
      for (std::size_t j = 0; j < kConstants; ++j) {
        rest -= j == i ? 0 : products[i][j] * factors[j];
      }
      factors[i] = std::clamp(rest / (products[i][i] + inertia), 1 / kMostTimes, kMostTimes);
    }
  }
  Constants fitted;
  fitted.calibrated = true;
  for (std::size_t i = 0; i < kConstants; ++i) {
    fitted.seconds[i / kUnits][i % kUnits] = start.seconds[i / kUnits][i % kUnits] * factors[i];
  }
  return fitted;
}

double prediction_error(const std::vector<Sample>& samples, const Constants& constants) {
  double sum = 0;
  for (const auto& sample : samples) {
    const double error = constants.time_of(sample.counts) / sample.seconds - 1;
    sum += error * error;
  }
  return samples.empty() ? 0 : std::sqrt(sum / static_cast<double>(samples.size()));
}

}  // namespace dba::plan

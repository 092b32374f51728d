#include "plan/fit.h"

#include <algorithm>
#include <cmath>

namespace dba::plan {
namespace {

constexpr std::size_t kConstants = kEngines * kUnits;
/// A constant may differ from its start by this factor: beyond it the samples say nothing of it.
constexpr double kMostTimes = 30.0;
/// The weight of staying at the start, against samples of weight one each: for those that the model explains, and for
/// the mean square of the error that it leaves in them.
constexpr double kInertia = 3e-4;
constexpr double kInertiaOfError = 0.25;
constexpr int kSweeps = 20'000;

/// The weight of the difference between two rivals of the same speed; of those apart by a factor it is less.
constexpr double kRivalry = 6.0;

/// What nobody would choose counts little: by the square of how many times slower than the fastest rival it is.
double weight_behind(double fastest, double seconds) {
  return (fastest / seconds) * (fastest / seconds);
}

/// Of each sample, the time of its fastest rival or of itself.
std::vector<double> fastest_rivals(const std::vector<Sample>& samples) {
  std::vector<double> fastest;
  for (const auto& sample : samples) {
    double least = sample.seconds;
    for (const auto& rival : samples) {
      least = sample.rivals >= 0 && rival.rivals == sample.rivals ? std::min(least, rival.seconds) : least;
    }
    fastest.push_back(least);
  }
  return fastest;
}

using Row = std::array<double, kConstants>;

/// The normal equations of least squares: weighted sums over rows of Σ row · factor = target.
struct Equations {
  std::array<Row, kConstants> products{};
  Row sums{};

  void add(const Row& row, double target, double weight) {
    for (std::size_t i = 0; i < kConstants; ++i) {
      sums[i] += weight * row[i] * target;
      for (std::size_t j = 0; j < kConstants; ++j) {
        products[i][j] += weight * row[i] * row[j];
      }
    }
  }
};

/// What each constant adds to the sample's time, at the start: the unknowns are factors of the starting constants.
Row parts(const Sample& sample, const Constants& start) {
  Row row{};
  for (std::size_t i = 0; i < kConstants; ++i) {
    const auto engine = i / kUnits, unit = i % kUnits;
    row[i] = sample.counts[engine][unit] * start.seconds[engine][unit];
  }
  return row;
}

Row divided(Row row, double by) {
  for (auto& number : row) {
    number /= by;
  }
  return row;
}

Row difference(Row row, const Row& other) {
  for (std::size_t i = 0; i < kConstants; ++i) {
    row[i] -= other[i];
  }
  return row;
}

/// Within bounds by coordinate descent.
Constants solved(const Equations& equations, double inertia, const Constants& start) {
  const auto& [products, sums] = equations;
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

}  // namespace

Constants fit(const std::vector<Sample>& samples, const Constants& start) {
  Equations equations;
  const auto fastest = fastest_rivals(samples);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto& sample = samples[i];
    const auto row = parts(sample, start);
    equations.add(divided(row, sample.seconds), 1.0, weight_behind(fastest[i], sample.seconds));
    for (std::size_t j = 0; j < i; ++j) {
      const auto& rival = samples[j];
      if (sample.rivals >= 0 && rival.rivals == sample.rivals) {
        const double faster = std::min(sample.seconds, rival.seconds);
        const double apart = (sample.seconds - rival.seconds) / faster;
        const double close = 1 / (1 + apart * apart);
        equations.add(divided(difference(row, parts(rival, start)), faster), apart,
                      kRivalry * weight_behind(fastest[i], faster) * close * close);
      }
    }
  }
  const auto count = static_cast<double>(std::max<std::size_t>(samples.size(), 1));
  const auto first = solved(equations, kInertia * count, start);
  const double error = prediction_error(samples, first);
  return solved(equations, std::max(kInertia, kInertiaOfError * error * error) * count, start);
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

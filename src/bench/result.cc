#include "bench/result.h"

#include <algorithm>
#include <cmath>

namespace dba::bench {
namespace {

bool comparable(const Result& a, const Result& b) {
  return a.pass == b.pass && a.cache == b.cache && a.one.length == b.one.length && a.one.batch == b.one.batch &&
         a.one.precision == b.one.precision && a.one.threads == b.one.threads;
}

}  // namespace

std::string to_string(Status status) {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::skipped:
      return "skipped";
    case Status::wrong:
      return "wrong";
    case Status::failed:
      return "failed";
    case Status::stopped:
      return "stopped";
  }
  return "?";
}

Quartiles quartiles_of(std::vector<double> values) {
  if (values.empty()) {
    return {};
  }
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(place);
    const auto above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - std::floor(place)) * (values[above] - values[below]);
  };
  return {at(0.25), at(0.5), at(0.75)};
}

void add_ratios(std::vector<Result>& results, const std::vector<std::string>& baselines) {
  for (auto& result : results) {
    result.ratios.assign(baselines.size(), kUnknown);
    for (size_t i = 0; i < baselines.size(); ++i) {
      for (const auto& other : results) {
        if (other.method == baselines[i] && comparable(other, result)) {
          result.ratios[i] = other.seconds.median / result.seconds.median;
        }
      }
    }
  }
}

}  // namespace dba::bench

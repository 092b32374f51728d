#include "missing_values.h"

#include <cmath>

namespace dba::data {
namespace {

// One channel; true if it had a value.
bool fill_channel(std::span<float> values, std::size_t channel, std::size_t channels) {
  const std::size_t steps = values.size() / channels;
  const auto at = [&](std::size_t step) -> float& { return values[step * channels + channel]; };
  std::size_t known = steps;  // the last step with a value
  for (std::size_t step = 0; step < steps; ++step) {
    if (std::isnan(at(step)))
      continue;
    const double right = at(step);
    if (known == steps) {
      for (std::size_t gap = 0; gap < step; ++gap)
        at(gap) = at(step);
    } else {
      const double left = at(known);
      const auto width = static_cast<double>(step - known);
      for (std::size_t gap = known + 1; gap < step; ++gap)
        at(gap) = static_cast<float>(left + (right - left) * (static_cast<double>(gap - known) / width));
    }
    known = step;
  }
  if (known == steps)
    return false;
  for (std::size_t gap = known + 1; gap < steps; ++gap)
    at(gap) = at(known);
  return true;
}

}  // namespace

std::size_t fill_missing(std::span<float> values, std::size_t channels) {
  std::size_t without_values = 0;
  for (std::size_t channel = 0; channel < channels; ++channel)
    without_values += fill_channel(values, channel, channels) ? 0 : 1;
  return without_values;
}

}  // namespace dba::data

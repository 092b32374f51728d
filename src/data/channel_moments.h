#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dba::data {

/// Mean and standard deviation of every channel, updated step by step (Welford): no large sums cancel. A channel that
/// has no value anywhere has mean and deviation 0.
class ChannelMoments {
 public:
  explicit ChannelMoments(std::size_t channels) : values_(channels), mean_(channels), squares_(channels) {}

  /// steps × channels; NaN, which a channel without a value in a series is, counts for nothing.
  void add(std::span<const float> values) {
    for (std::size_t begin = 0; begin < values.size(); begin += mean_.size()) {
      for (std::size_t c = 0; c < mean_.size(); ++c) {
        const double value = values[begin + c];
        if (std::isnan(value))
          continue;
        const double difference = value - mean_[c];
        mean_[c] += difference / static_cast<double>(++values_[c]);
        squares_[c] += difference * (value - mean_[c]);
      }
    }
  }

  const std::vector<double>& means() const {
    return mean_;
  }
  std::vector<double> deviations() const {
    std::vector<double> result(mean_.size());
    for (std::size_t c = 0; c < result.size(); ++c)
      result[c] = values_[c] > 1 ? std::sqrt(squares_[c] / static_cast<double>(values_[c] - 1)) : 0.0;
    return result;
  }

 private:
  std::vector<std::uint64_t> values_;  // how many
  std::vector<double> mean_;
  std::vector<double> squares_;  // sum of squared differences from the mean
};

}  // namespace dba::data

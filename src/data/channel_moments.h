#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dba::data {

/// Mean and standard deviation of every channel, updated step by step (Welford): no large sums cancel.
class ChannelMoments {
 public:
  explicit ChannelMoments(std::size_t channels) : mean_(channels), squares_(channels) {}

  /// steps × channels.
  void add(std::span<const float> values) {
    for (std::size_t begin = 0; begin < values.size(); begin += mean_.size()) {
      ++steps_;
      for (std::size_t c = 0; c < mean_.size(); ++c) {
        const double difference = values[begin + c] - mean_[c];
        mean_[c] += difference / static_cast<double>(steps_);
        squares_[c] += difference * (values[begin + c] - mean_[c]);
      }
    }
  }

  const std::vector<double>& means() const {
    return mean_;
  }
  std::vector<double> deviations() const {
    std::vector<double> result(mean_.size());
    for (std::size_t c = 0; c < result.size(); ++c)
      result[c] = steps_ > 1 ? std::sqrt(squares_[c] / static_cast<double>(steps_ - 1)) : 0.0;
    return result;
  }

 private:
  std::uint64_t steps_ = 0;
  std::vector<double> mean_;
  std::vector<double> squares_;  // sum of squared differences from the mean
};

}  // namespace dba::data

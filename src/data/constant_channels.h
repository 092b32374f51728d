#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace dba::data {

/// Which channels have one value at every time step of every series, or none at all.
class ConstantChannels {
 public:
  /// steps × channels, at least one step; a channel without a value in the series is NaN.
  void add(std::span<const float> values, std::size_t channels) {
    if (first_.empty()) {
      first_.assign(channels, std::numeric_limits<float>::quiet_NaN());
      varies_.assign(channels, 0);
    }
    for (std::size_t begin = 0; begin < values.size(); begin += channels) {
      for (std::size_t c = 0; c < channels; ++c) {
        const float value = values[begin + c];
        if (std::isnan(first_[c]))
          first_[c] = value;
        varies_[c] |= value != first_[c] && !std::isnan(value) ? 1 : 0;
      }
    }
  }

  /// Ascending, from 1.
  std::vector<std::size_t> numbers() const {
    std::vector<std::size_t> result;
    for (std::size_t c = 0; c < varies_.size(); ++c) {
      if (!varies_[c])
        result.push_back(c + 1);
    }
    return result;
  }

 private:
  std::vector<float> first_;
  std::vector<unsigned char> varies_;
};

}  // namespace dba::data

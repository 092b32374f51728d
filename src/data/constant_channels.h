#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace dba::data {

/// Which channels have one value at every time step of every series.
class ConstantChannels {
 public:
  /// steps × channels, at least one step.
  void add(std::span<const float> values, std::size_t channels) {
    if (first_.empty()) {
      first_.assign(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(channels));
      varies_.assign(channels, 0);
    }
    for (std::size_t begin = 0; begin < values.size(); begin += channels) {
      for (std::size_t c = 0; c < channels; ++c)
        varies_[c] |= values[begin + c] != first_[c] ? 1 : 0;
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

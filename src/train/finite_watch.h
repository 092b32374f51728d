#pragma once

#include <torch/nn/module.h>

#include <cstdint>

namespace dba::train {

/// Ends a run, by an error of type Diverged, whose losses or weights are no longer finite.
class FiniteWatch {
 public:
  explicit FiniteWatch(at::Device device);

  /// int64 scalar on the device, for the training step to keep: the first update with a loss that is not finite, or −1.
  const at::Tensor& first_bad() const {
    return first_bad_;
  }
  /// Waits for what is under way on the device.
  void check_losses() const;
  /// The same and the weights: a step can spoil them although its loss was finite, and such weights are neither saved
  /// nor judged.
  void check(const torch::nn::Module& module, std::int64_t update) const;

 private:
  at::Tensor first_bad_;
};

}  // namespace dba::train

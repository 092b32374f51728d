#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dba::train {

/// What a model does on a set. Counts are gathered on the device and read once, by `result`.
struct Metrics {
  std::int64_t examples = 0;
  double loss = 0;                                   ///< mean cross-entropy, without smoothing and class weights
  double accuracy = 0;                               ///< fraction
  double macro_f1 = 0;                               ///< mean over the classes that occur or were predicted
  std::vector<std::vector<std::int64_t>> confusion;  ///< [true class][predicted class]

  /// By the name in the configuration.
  double value(const std::string& metric) const;
  /// Whether `value` of that metric is better than `other`.
  static bool better(const std::string& metric, double value, double other);
};

class MetricCounter {
 public:
  MetricCounter(std::int64_t classes, at::Device device);
  /// logits (B, classes), labels (B).
  void add(const at::Tensor& logits, const at::Tensor& labels);
  Metrics result() const;

 private:
  std::int64_t classes_;
  std::int64_t examples_ = 0;
  at::Tensor confusion_;  // (classes²) int64
  at::Tensor loss_;       // () double
};

}  // namespace dba::train

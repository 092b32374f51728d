#include "dba/train/metrics.h"

#include <torch/torch.h>

namespace dba::train {

double Metrics::value(const std::string& metric) const {
  return metric == "loss" ? loss : metric == "macro_f1" ? macro_f1 : accuracy;
}

bool Metrics::better(const std::string& metric, double value, double other) {
  return metric == "loss" ? value < other : value > other;
}

MetricCounter::MetricCounter(std::int64_t classes, at::Device device)
    : classes_(classes),
      confusion_(torch::zeros({classes * classes}, torch::dtype(at::kLong).device(device))),
      loss_(torch::zeros({}, torch::dtype(at::kDouble).device(device))) {}

void MetricCounter::add(const at::Tensor& logits, const at::Tensor& labels) {
  const torch::NoGradGuard no_grad;
  examples_ += labels.size(0);
  const auto place = labels * classes_ + logits.argmax(1);
  confusion_.index_add_(0, place, torch::ones_like(place));  // integers: exact in any order
  loss_ += torch::nn::functional::cross_entropy(
      logits.to(at::kFloat), labels, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

Metrics MetricCounter::result() const {
  Metrics metrics;
  metrics.examples = examples_;
  const auto table = confusion_.cpu().view({classes_, classes_});
  const auto count = table.accessor<std::int64_t, 2>();
  std::int64_t right = 0;
  double f1 = 0;
  std::int64_t seen = 0;
  for (std::int64_t c = 0; c < classes_; ++c) {
    std::vector<std::int64_t> row;
    std::int64_t actual = 0, predicted = 0;
    for (std::int64_t k = 0; k < classes_; ++k) {
      row.push_back(count[c][k]);
      actual += count[c][k];
      predicted += count[k][c];
    }
    metrics.confusion.push_back(std::move(row));
    right += count[c][c];
    if (actual + predicted > 0) {
      f1 += 2.0 * static_cast<double>(count[c][c]) / static_cast<double>(actual + predicted);
      ++seen;
    }
  }
  if (examples_ > 0) {
    metrics.accuracy = static_cast<double>(right) / static_cast<double>(examples_);
    metrics.loss = loss_.item<double>() / static_cast<double>(examples_);
    metrics.macro_f1 = f1 / static_cast<double>(seen);
  }
  return metrics;
}

}  // namespace dba::train

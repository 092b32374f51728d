#pragma once

#include <optional>
#include <string>

#include "dba/train/metrics.h"
#include "dba/train/model.h"

namespace dba::train {

/// What a finished run knows of itself.
struct RunSummary {
  const config::TrainConfig* config = nullptr;
  std::string version, commit;
  at::Device device = at::kCPU;
  std::int64_t updates = 0;
  std::int64_t best_update = 0;
  bool stopped_early = false;
  double seconds = 0;
  double waited = 0;  ///< seconds in which training waited for data
  std::size_t train_examples = 0;
  std::string validation_source;
  data::SetStatistics training_statistics;
  std::optional<data::SetStatistics> validation_statistics;  ///< absent: held out of the training file
  std::optional<data::SetStatistics> test_statistics;
  Metrics validation;
  std::optional<Metrics> test;
  std::string test_error;  ///< why there is no test part
};

/// report.json
std::string report_json(const RunSummary& summary, const Model& best);

}  // namespace dba::train

#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dba/train/metrics.h"
#include "dba/train/model.h"
#include "train/sets.h"
#include "train/training_state.h"

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
  double waited = 0;          ///< seconds in which training waited for data
  double evaluating = 0;      ///< seconds of evaluations during training
  double saving = 0;          ///< seconds of checkpoints
  std::int64_t repeated = 0;  ///< updates that were repeated from a recorded graph
  std::size_t train_examples = 0;
  /// Part → CachedSet::digest of its file, before anything is held out of it; none of a part that the model's own bound
  /// on the length has cut.
  std::map<std::string, std::string> data_digests;
  std::string chosen_on;  ///< what chose the model
  data::SetStatistics training_statistics;
  std::vector<std::string> classes_without_examples;         ///< listed by the training file's header
  std::optional<data::SetStatistics> validation_statistics;  ///< absent: held out of the training file
  std::optional<data::SetStatistics> test_statistics;
  std::optional<Metrics> validation;
  std::optional<Metrics> test;
  /// Protocol → update and metrics on the test set: that of the configuration and, where the test set was watched,
  /// those that the same run allows.
  nlohmann::ordered_json protocols;
};

/// What configuration, data and the end of training say; the rest is for the caller to set.
RunSummary summarise(const config::TrainConfig& config, const Sets& sets, at::Device device, const Position& position);

/// report.json
std::string report_json(const RunSummary& summary, const Model& best);

}  // namespace dba::train

#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "dba/config/train_config.h"
#include "dba/train/metrics.h"
#include "train/training_state.h"

namespace dba::train {

/// Which evaluation gives a run its model: under `honest` the best one on examples that are not the test set's, under
/// `as_published` the best one on the test set, under `last_epoch` the last one.
class Protocol {
 public:
  /// The configuration must outlive it.
  explicit Protocol(const config::TrainConfig& config) : config_(config) {}

  bool chooses() const;
  /// Whether the test set is evaluated along the way although it chooses nothing.
  bool watches_test() const;
  /// Whether the model of this evaluation, on the examples that choose, is the run's from now on.
  bool takes(const Metrics& metrics, Position& position) const;
  /// What a choice on the test set would have come to is remembered.
  void remember_best_test(const Metrics& test, Position& position) const;
  bool out_of_patience(const Position& position) const;

  /// Protocol → update and metrics on the test set: that of the configuration, and the others as far as the test set
  /// was watched. chosen: of the run's model; last: evaluates the one that training ended with.
  nlohmann::ordered_json figures(const Position& position, const Metrics& chosen,
                                 const std::function<Metrics()>& last) const;

 private:
  const config::TrainConfig& config_;
};

}  // namespace dba::train

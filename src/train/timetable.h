#pragma once

#include "dba/config/train_config.h"
#include "train/training_state.h"

namespace dba::train {

/// When a run logs, evaluates, saves and ends, by its configuration alone.
class Timetable {
 public:
  /// batches: of the first epoch; with a token budget the others differ a little from it. The configuration must
  /// outlive it.
  Timetable(const config::TrainConfig& config, std::int64_t batches);

  /// Of the whole run.
  std::int64_t updates() const {
    return updates_;
  }
  bool is_over(const Position& position) const;
  bool log_is_due(const Position& position) const;
  bool evaluation_is_due_after_update(const Position& position) const;
  bool evaluation_is_due_after_epoch(const Position& position) const;
  /// seconds: since the last checkpoint.
  bool checkpoint_is_due(const Position& position, double seconds) const;

 private:
  const config::LoopConfig& loop_;
  std::int64_t updates_;
};

}  // namespace dba::train

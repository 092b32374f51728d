#include "train/timetable.h"

#include <algorithm>

namespace dba::train {

Timetable::Timetable(const config::TrainConfig& config, std::int64_t batches) : loop_(config.train) {
  const auto updates_of_an_epoch = (batches + loop_.accumulate - 1) / loop_.accumulate;
  updates_ = loop_.epochs > 0 ? loop_.epochs * updates_of_an_epoch : loop_.updates;
  if (loop_.updates > 0) {
    updates_ = std::min(updates_, loop_.updates);
  }
}

bool Timetable::is_over(const Position& position) const {
  return (loop_.updates > 0 && position.update >= loop_.updates) ||
         (loop_.epochs > 0 && position.epoch >= loop_.epochs);
}

bool Timetable::log_is_due(const Position& position) const {
  return position.update % loop_.log_every == 0;
}

bool Timetable::evaluation_is_due_after_update(const Position& position) const {
  return loop_.evaluate_every > 0 && position.update % loop_.evaluate_every == 0;
}

bool Timetable::evaluation_is_due_after_epoch(const Position& position) const {
  return loop_.evaluate_every == 0 &&
         (position.epoch == 1 || position.epoch % loop_.evaluate_epochs == 0 || is_over(position));
}

bool Timetable::checkpoint_is_due(const Position& position, double seconds) const {
  return (loop_.checkpoint_every > 0 && position.update % loop_.checkpoint_every == 0) ||
         (loop_.checkpoint_seconds > 0 && seconds > loop_.checkpoint_seconds);
}

}  // namespace dba::train

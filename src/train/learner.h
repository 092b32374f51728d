#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/finite_watch.h"
#include "train/prefetch.h"
#include "train/resident_set.h"
#include "train/sets.h"
#include "train/training_step.h"

namespace dba::train {

/// What learns in a run, on its device: sets, model and optimiser, and the batches of an epoch that make updates.
class Learner {
 public:
  /// Sets threads, random numbers and determinism of the process. `say` as of open_sets; the configuration must outlive
  /// it.
  Learner(const config::TrainConfig& config, const std::filesystem::path& folder, bool resume,
          const std::function<void(const std::string&)>& say);

  at::Device device() const {
    return device_;
  }
  const Sets& sets() const {
    return sets_;
  }
  Model& model() {
    return model_;
  }
  Window& window() {
    return window_;
  }
  const FiniteWatch& finite() const {
    return finite_;
  }
  /// The training set where it lies on the device, or nothing.
  const std::shared_ptr<const ResidentSet>& train_on_device() const {
    return train_on_device_;
  }
  TrainingState state(Position& position) {
    return {model_, *optimiser_, position, window_, device_, sets_.train.digest()};
  }

  /// Records updates where configuration, device and program allow it. The result, which may be nothing, must live as
  /// long as updates are made.
  std::shared_ptr<void> record_updates();

  /// From now on update() takes the batches of this epoch, beginning with `batch`.
  void begin_epoch(std::int64_t epoch, std::int64_t batch);
  /// Of the epoch; before the first one begins, of the first.
  std::int64_t batches() const {
    return std::ssize(batches_);
  }
  /// One step of the optimiser with `count` batches, those from `first` on; they are taken in order.
  void update(std::int64_t first, std::int64_t count, std::int64_t number, double lr);
  /// Seconds that updates of the epoch have waited for data.
  double end_epoch();
  /// Updates that were repeated from a recording.
  std::int64_t repeated() const {
    return step_.repeated();
  }

 private:
  std::vector<std::vector<std::size_t>> plan(std::int64_t epoch) const;

  const config::TrainConfig& config_;
  const at::Device device_;
  const Sets sets_;
  const std::vector<std::int64_t> lengths_;
  Model model_;
  const std::unique_ptr<Optimiser> optimiser_;
  Window window_;
  const FiniteWatch finite_;
  std::unique_ptr<StepRecorder> recorder_;
  TrainingStep step_;
  const std::shared_ptr<const ResidentSet> train_on_device_;
  std::vector<std::vector<std::size_t>> batches_;
  std::optional<Prefetcher> prefetcher_;
};

}  // namespace dba::train

#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "dba/run/progress.h"
#include "train/protocol.h"
#include "train/report.h"
#include "train/resident_set.h"
#include "train/run_log.h"
#include "train/sets.h"

namespace dba::train {

/// The evaluations of a run: those along the way, which choose its model, and those of its report.
class RunEvaluation {
 public:
  /// All but the path must outlive it. Sets go to the device that belong there; train_on_device: the training set where
  /// it is there already.
  RunEvaluation(const Protocol& protocol, const Sets& sets, at::Device device, std::filesystem::path model_file,
                std::shared_ptr<const ResidentSet> train_on_device);

  /// Evaluates a model in training; one that the protocol takes is saved. `progress` is told the figures.
  void during_training(Model& model, Position& position, RunLog& log, run::Progress& progress);

  /// Sets the figures of the validation and the test set. best: the model that the protocol has taken, last: the one
  /// that training ended with.
  void at_end(RunSummary& summary, Model& best, Model& last, const Position& position) const;

 private:
  Metrics on_validation(Model& model) const;
  Metrics on_test(Model& model) const;
  void compare_with_expectation(double accuracy, const Position& position, run::Progress& progress);

  const Protocol& protocol_;
  const Sets& sets_;
  const config::TrainConfig& config_;
  const at::Device device_;
  const std::filesystem::path model_file_;
  std::shared_ptr<const ResidentSet> validation_on_device_;
  std::shared_ptr<const ResidentSet> test_on_device_;
  bool expectation_told_ = false;
};

}  // namespace dba::train

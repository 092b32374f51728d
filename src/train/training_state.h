#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "dba/run/checkpoint_store.h"
#include "dba/train/model.h"
#include "dba/train/optimiser.h"

namespace dba::train {

/// Where a run stands, besides its tensors.
struct Position {
  std::int64_t update = 0;
  std::int64_t epoch = 0;
  std::int64_t batch = 0;  ///< the next one of the epoch
  double best = std::numeric_limits<double>::quiet_NaN();
  std::int64_t best_update = -1;
  std::int64_t stale = 0;       ///< evaluations since the best
  std::int64_t evaluated = -1;  ///< update of the last evaluation
  std::string best_test;        ///< JSON of the best evaluation of a watched test set and its update; empty: none
  std::int64_t repeated = 0;    ///< updates that were repeated from a recording
  double seconds = 0;           ///< of training so far
  double waited = 0;            ///< seconds of it in which training waited for data
  double evaluating = 0;        ///< seconds of it for evaluations
  double saving = 0;            ///< seconds of it for checkpoints
};

/// Loss and right answers since the last line of the log, on the device.
struct Window {
  explicit Window(at::Device device);
  void clear();
  at::Tensor loss, right, examples;  ///< scalars, double
};

/// Everything that decides how a run goes on.
struct TrainingState {
  Model& model;
  Optimiser& optimiser;
  Position& position;
  Window& window;
  at::Device device;
  std::string data = {};  ///< CachedSet::digest of the training set
};

/// Weights, optimiser, random states, position, thread count, digest of the data.
void save_checkpoint(run::CheckpointStore& store, const TrainingState& state);
/// `warn` hears of a thread count that is not the one of the checkpoint: sums may then round differently. Other data
/// than the checkpoint's are refused: the run would be of both.
void load_checkpoint(const run::Checkpoint& checkpoint, const TrainingState& state,
                     const std::function<void(const std::string&)>& warn);

}  // namespace dba::train

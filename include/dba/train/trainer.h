#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "dba/config/train_config.h"
#include "dba/run/progress.h"
#include "dba/run/run_folder.h"

namespace dba::train {

/// The loss became NaN or infinite; the message says when and what may help.
class Diverged : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct TrainOptions {
  bool resume = false;
  /// Not 0: after so many seconds the run stops with its state saved, to be resumed.
  double seconds = 0;
  /// Not 0: after so many updates (and some before them) a message says where the GPU's time went.
  std::int64_t profile = 0;
  run::Progress::Options progress;
  /// What the report says of the program: version and commit.
  std::string version;
  std::string commit;
};

struct TrainResult {
  int signal = 0;            ///< not 0: stopped by that signal, state saved
  bool out_of_time = false;  ///< stopped after TrainOptions::seconds, state saved
  std::string report;        ///< report.json; empty if stopped
};

/// Trains as the configuration says, inside a run's folder: checkpoints, metrics.jsonl, TensorBoard events, the best
/// model by the validation metric, report.json. A resumed run goes on bit by bit as if it had never stopped.
TrainResult train(const config::TrainConfig& config, run::RunFolder& folder, const TrainOptions& options);

}  // namespace dba::train

#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "dba/run/event_writer.h"
#include "dba/run/run_folder.h"
#include "train/training_state.h"

namespace dba::train {

/// The figures of a run, for programs and for TensorBoard: each call is a line of metrics.jsonl and a point on the
/// curves `part/figure`.
class RunLog {
 public:
  using Figure = std::pair<const char*, double>;

  /// resumed_after: as of run::EventWriter.
  RunLog(run::RunFolder& folder, std::int64_t resumed_after);

  void write(const std::string& part, const Position& position, std::initializer_list<Figure> figures);

 private:
  run::RunFolder& folder_;
  run::EventWriter events_;
};

}  // namespace dba::train

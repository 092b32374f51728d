#pragma once

#include <functional>
#include <limits>
#include <map>

#include "bench/memory.h"
#include "plan/choose.h"

namespace dba::plan {

/// A candidate under the clock.
struct Figure {
  double seconds = std::numeric_limits<double>::quiet_NaN();  ///< median
  bench::PeakMemory memory;
  /// Of the output against the reference candidate's, by norm.
  double difference = std::numeric_limits<double>::quiet_NaN();
  std::string failure;  ///< why there is no time
};

struct Effort {
  double seconds = 0.3;  ///< under the clock, per figure, about; three samples in any case
  int64_t repeats = 9;   ///< samples, at most
  bool memory = true;    ///< measure the peak, in a call of its own
  bool softmax = false;  ///< softmax attention as well
  std::function<bool()> stop = [] { return false; };
};

struct Figures {
  std::map<Candidate, Figure> candidates;  ///< those without an obstacle
  Figure softmax;
};

/// Runs the candidates that have no obstacle on random tokens of the shape: B plain sequences of `longest` tokens. They
/// take turns, so that all meet the same state of the machine. One that is far behind is sampled once; where several
/// are close to the fastest, each of these is sampled longer.
Figures measure(const Shape& shape, const Plan& plan, const Effort& effort);

}  // namespace dba::plan

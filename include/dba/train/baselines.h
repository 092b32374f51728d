#pragma once

#include "dba/data/cache.h"

namespace dba::train {

/// Accuracies that need no attention, for comparison.
struct Baselines {
  double majority = 0;  ///< always the most frequent training class
  /// Of a logistic regression on how often each symbol occurs, or, for series, on the channels' means and mean squares.
  double regression = 0;
};

/// Learns both on `training` and measures them on `test`.
Baselines measure_baselines(const data::CachedSet& training, const data::CachedSet& test);

}  // namespace dba::train

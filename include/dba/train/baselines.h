#pragma once

#include "dba/data/cache.h"

namespace dba::train {

/// Accuracies that need no attention, for comparison.
struct Baselines {
  double majority = 0;       ///< always the most frequent training class
  double bag_of_tokens = 0;  ///< logistic regression on how often each symbol occurs (series: channel means)
};

/// Learns both on `training` and measures them on `test`.
Baselines measure_baselines(const data::CachedSet& training, const data::CachedSet& test);

}  // namespace dba::train

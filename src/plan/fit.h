#pragma once

#include <cstdint>
#include <vector>

#include "plan/constants.h"

namespace dba::plan {

/// What was counted and what the clock said.
struct Sample {
  Tally counts;
  double seconds;
  int64_t rivals = -1;  ///< samples with the same number are candidates for one shape; −1: none
};

/// The constants, none negative, whose predictions come closest to the samples, each by its relative error. What a plan
/// is for is the choice between rivals, so their differences count as samples too, and the more the closer they are.
/// Constants that the samples say little about stay near `start`.
Constants fit(const std::vector<Sample>& samples, const Constants& start);

/// Root of the mean squared relative error of the predictions.
double prediction_error(const std::vector<Sample>& samples, const Constants& constants);

}  // namespace dba::plan

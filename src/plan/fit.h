#pragma once

#include <vector>

#include "plan/constants.h"

namespace dba::plan {

/// What was counted and what the clock said.
struct Sample {
  Tally counts;
  double seconds;
};

/// The constants, none negative, whose predictions come closest to the samples, each by its relative error. Constants
/// that the samples say little about stay near `start`.
Constants fit(const std::vector<Sample>& samples, const Constants& start);

/// Root of the mean squared relative error of the predictions.
double prediction_error(const std::vector<Sample>& samples, const Constants& constants);

}  // namespace dba::plan

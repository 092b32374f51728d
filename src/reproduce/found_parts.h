#pragma once

#include <span>
#include <vector>

#include "reproduce/experiment.h"
#include "reproduce/result.h"

namespace dba::reproduce {

/// What a page shows.
struct FoundParts {
  Experiment experiment;
  std::vector<Result> results;
  std::vector<std::string> doubts;  ///< a sentence for every task whose results differ in their data or settings
  std::vector<std::string> trials;  ///< every row with other settings than the recipe's: its title and its files
};

/// The experiment with what its results bring along, so that the page mixes nothing: results on other data than the
/// paper's are tasks of their own, which the paper has no figures for, and so are results whose data have different
/// digests, while those without a digest stay with the task; so are results with other settings than the recipe's, a
/// task for each choice of them; shortened runs have sections of their own, at the end.
FoundParts found_parts(const Experiment& experiment, std::span<const Result> results);

}  // namespace dba::reproduce

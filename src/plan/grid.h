#pragma once

#include <functional>
#include <map>
#include <vector>

#include "plan/choose.h"

namespace dba::plan {

/// 60 shapes, none of which constants are fitted to, each forward and in training.
std::vector<Shape> grid_shapes(at::DeviceType device, at::ScalarType dtype);

/// One shape: what was chosen, and what would have been best.
struct GridRow {
  Shape shape;
  Candidate choice;
  Candidate best;
  double choice_seconds;
  double best_seconds;
  std::map<Candidate, double> seconds;    ///< of every candidate that ran
  std::map<Candidate, double> predicted;  ///< of every candidate in question

  /// The time that the choice costs beyond the best, as a share of the best.
  double loss() const {
    return choice_seconds / best_seconds - 1;
  }
};

/// Measures every candidate at every shape. Rows without a time for the choice are left out. Ends early after `stop`.
std::vector<GridRow> measure_grid(const std::vector<Shape>& shapes, double seconds_per_figure,
                                  const std::function<void(std::size_t done, std::size_t total)>& progress,
                                  const std::function<bool()>& stop);

}  // namespace dba::plan

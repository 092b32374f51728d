#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/grid.h"
#include "plan/measure.h"

namespace dba::plan {

/// All that `dba plan` says of a shape.
struct Report {
  Shape shape;
  Plan plan;
  bool calibrated = false;
  std::string constants_file;
  std::optional<Figures> figures;    ///< with --measure
  double softmax_seconds = 0.0;      ///< predicted
  std::optional<int64_t> crossover;  ///< predicted
};

std::string to_text(const Report& report);
std::string to_json(const Report& report);

/// A Markdown table, and a sentence on how far the choices are from the best.
std::string to_markdown(const std::vector<GridRow>& rows);
std::string to_json(const std::vector<GridRow>& rows);

}  // namespace dba::plan

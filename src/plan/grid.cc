#include "plan/grid.h"

#include <cmath>

#include "plan/measure.h"

namespace dba::plan {

std::vector<Shape> grid_shapes(at::DeviceType device, at::ScalarType dtype) {
  struct Sizes {
    int64_t d, heads, d_p, d_in;
    Form form = Form::paper;
  };
  // Heads and slots few and many, tokens narrow and wide. The constants are not fitted to these shapes.
  constexpr Sizes kSizes[] = {{256, 8, 16, 32}, {512, 4, 16, 24},
                              {64, 4, 8, 16},   {192, 6, 32, 48},
                              {128, 2, 16, 24}, {64, 8, 32, 24, Form::released},
                              {256, 4, 64, 32}, {128, 8, 128, 32},
                              {384, 12, 8, 24}, {96, 4, 48, 24, Form::released}};
  struct Lengths {
    int64_t length, batch;
  };
  constexpr Lengths kLengths[] = {{40, 60}, {72, 1}, {160, 12}, {256, 8}, {700, 3}, {2200, 1}};
  std::vector<Shape> shapes;
  for (const auto& sizes : kSizes) {
    for (const auto& lengths : kLengths) {
      for (const auto& shape :
           measured_shapes({lengths.length, lengths.batch, sizes.d, sizes.heads, sizes.d_p, sizes.d_in, sizes.form},
                           device, dtype)) {
        shapes.push_back(shape);
      }
    }
  }
  return shapes;
}

std::vector<GridRow> measure_grid(const std::vector<Shape>& shapes, double seconds_per_figure,
                                  const std::function<void(std::size_t done, std::size_t total)>& progress,
                                  const std::function<bool()>& stop) {
  Effort effort;
  effort.seconds = seconds_per_figure;
  effort.memory = false;
  effort.stop = stop;
  std::vector<GridRow> rows;
  for (std::size_t i = 0; i < shapes.size() && !stop(); ++i) {
    const auto plan = make_plan(shapes[i], constants_for(shapes[i].device, shapes[i].dtype));
    const auto figures = measure(shapes[i], plan, effort);
    if (stop()) {
      break;
    }
    progress(i + 1, shapes.size());
    const auto chosen = figures.candidates.find(plan.choice);
    if (chosen == figures.candidates.end() || !std::isfinite(chosen->second.seconds)) {
      continue;
    }
    GridRow row{shapes[i], plan.choice, plan.choice, chosen->second.seconds, chosen->second.seconds, {}, {}};
    for (const auto& estimate : plan.estimates) {
      if (estimate.obstacle.empty()) {
        row.predicted[estimate.candidate] = estimate.seconds;
      }
    }
    for (const auto& [candidate, figure] : figures.candidates) {
      if (std::isfinite(figure.seconds)) {
        row.seconds[candidate] = figure.seconds;
      }
      if (figure.seconds < row.best_seconds) {
        row.best = candidate;
        row.best_seconds = figure.seconds;
      }
    }
    rows.push_back(row);
  }
  return rows;
}

}  // namespace dba::plan

#include "plan/calibrate.h"

#include <cmath>
#include <stdexcept>

#include "plan/measure.h"

namespace dba::plan {

std::vector<Shape> calibration_shapes(at::DeviceType device, at::ScalarType dtype) {
  struct Sizes {
    int64_t length, batch, d, heads, d_p, d_in;
    Form form = Form::paper;
  };
  // Each row leans on another constant: calls, sequences, products wide and narrow, exponentials, traffic.
  constexpr Sizes kSizes[] = {{64, 1, 64, 2, 8, 16},
                              {128, 16, 64, 8, 16, 24},
                              {512, 4, 64, 8, 32, 24, Form::released},
                              {1024, 4, 128, 4, 16, 24},
                              {2048, 2, 256, 4, 16, 24},
                              {512, 4, 256, 4, 64, 24},
                              {256, 32, 64, 4, 8, 16, Form::released},
                              {32, 64, 128, 8, 32, 24},
                              {1024, 1, 512, 8, 16, 64},
                              {4096, 1, 64, 8, 64, 24},
                              {16, 128, 64, 2, 4, 8},
                              {256, 4, 256, 8, 128, 32, Form::released},
                              {16, 8, 256, 4, 16, 24},
                              {768, 2, 128, 16, 48, 32},
                              {96, 1, 512, 8, 16, 64},
                              {128, 1, 320, 10, 16, 40},
                              {80, 1, 128, 4, 32, 24},
                              {120, 1, 256, 4, 32, 24, Form::released},
                              {32, 48, 384, 6, 16, 24},
                              {48, 32, 128, 8, 64, 32}};
  std::vector<Shape> shapes;
  for (const auto& sizes : kSizes) {
    for (const auto& shape : measured_shapes(
             {sizes.length, sizes.batch, sizes.d, sizes.heads, sizes.d_p, sizes.d_in, sizes.form}, device, dtype)) {
      shapes.push_back(shape);
    }
  }
  return shapes;
}

Calibration calibrate(const std::vector<Shape>& shapes,
                      const std::function<void(std::size_t done, std::size_t total)>& progress,
                      const std::function<bool()>& stop) {
  Effort effort;
  effort.seconds = 0.15;
  effort.memory = false;
  effort.softmax = true;
  effort.stop = stop;
  std::vector<Sample> samples;
  const auto add = [&](const Cost& cost, const Figure& figure, int64_t rivals) {
    if (figure.failure.empty() && std::isfinite(figure.seconds)) {
      samples.push_back({cost.tally, figure.seconds, rivals});
    }
  };
  Calibration result;
  Constants defaults;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const auto& shape = shapes[i];
    defaults = default_constants(shape.device, shape.dtype);
    const auto plan = make_plan(shape, defaults);
    const auto figures = measure(shape, plan, effort);
    if (stop()) {
      throw std::runtime_error("plan: stopped before the calibration was done; the old constants stay");
    }
    for (const auto& [candidate, figure] : figures.candidates) {
      add(cost_of(shape, candidate), figure, static_cast<int64_t>(i));
    }
    add(softmax_cost(shape), figures.softmax, /*rivals=*/-1);
    progress(i + 1, shapes.size());
  }
  if (samples.empty()) {
    throw std::runtime_error("plan: no candidate could be run, so there is nothing to calibrate with");
  }
  result.samples = samples.size();
  result.constants = fit(samples, defaults);
  result.error_before = prediction_error(samples, defaults);
  result.error_after = prediction_error(samples, result.constants);
  return result;
}

}  // namespace dba::plan

#pragma once

#include <functional>

#include "plan/fit.h"
#include "plan/shape.h"

namespace dba::plan {

struct Calibration {
  Constants constants;
  std::size_t samples = 0;
  double error_before = 0.0;  ///< of the predictions by the defaults; a share
  double error_after = 0.0;   ///< by the constants found
};

/// The shapes that constants are fitted to.
std::vector<Shape> calibration_shapes(at::DeviceType device, at::ScalarType dtype);

/// Measures all candidates and softmax attention over the shapes, forward and in training, and fits the constants:
/// less than a minute on two cores. `progress` hears of every figure; after `stop` it throws std::runtime_error.
Calibration calibrate(const std::vector<Shape>& shapes,
                      const std::function<void(std::size_t done, std::size_t total)>& progress,
                      const std::function<bool()>& stop);

}  // namespace dba::plan

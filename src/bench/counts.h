#pragma once

#include "bench/settings.h"

namespace dba::bench {

/// What a call costs by count, before anybody measures it. docs/benchmarks.md states the model.
struct Cost {
  double operations = 0.0;  ///< of the matrix products, two per multiply-add; NaN for a method without a model
  double bytes = 0.0;       ///< least memory traffic of tensors that are as long as the sequence; NaN likewise
  double memory = 0.0;      ///< bytes held at the peak beyond the input: an estimate on the safe side
};

/// Of the whole work: layer, encoder or step.
Cost cost_of(Kind kind, const Method& method, const Sizes& sizes, const Case& one, Pass pass, at::Device device);

}  // namespace dba::bench

#pragma once

#include "plan/constants.h"

namespace dba::plan {

/// What a call costs by count. docs/planner.md states the model.
struct Cost {
  double operations = 0.0;  ///< of the matrix products, two per multiply-add
  double bytes = 0.0;       ///< memory traffic of tensors as long as the sequences
  double memory = 0.0;      ///< bytes held at the peak beyond the input, about
  /// What the engines do, products as wide as vector registers or tiles make them: what the time is predicted from.
  Tally tally{};
};

/// Of the layer: forward, and backward in training.
Cost cost_of(const Shape& shape, Candidate candidate);
/// Of a layer of softmax attention of the same width and heads, on scaled_dot_product_attention.
Cost softmax_cost(const Shape& shape);

}  // namespace dba::plan

#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "dba/backend.h"
#include "dba/ops.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "support/core_inputs.h"

namespace dba::test {

/// Everything that a layer's operators take.
struct LayerOperands {
  Sequences sequences;
  at::Tensor x, restore_rows, restore_bias, out_bias;
  at::Tensor m;  ///< for restore on its own
  ops::ScoreRows rows;
  ops::CoreWeights weights;
  int64_t heads = 1;
  bool linear = false;
  ops::Dropout dropout;

  /// Those that are there, by name.
  std::vector<std::pair<std::string, at::Tensor*>> tensors();
  /// The same numbers rounded to `narrow`, as leaves of `dtype`.
  LayerOperands in(at::ScalarType dtype, at::ScalarType narrow) const;
};

LayerOperands layer_of(const LayerCase& layer, const CoreKind& kind, const std::vector<int64_t>& lengths,
                       uint64_t seed);

/// Widths that fill no vector and no panel, more rows than a panel holds, biases of every kind, rows of each sequence
/// in both operators; tokens enough for several units and for a sequence that is split.
inline const std::vector<int64_t> kOddLengths = {0, 700, 3, 0, 1700, 97, 500, 1};
/// No sequence is split: the whole layer goes stack by stack. Several make a stack, gaps among them and several stacks
/// in a unit.
inline const std::vector<int64_t> kUnsplitLengths = {40, 41, 0, 5, 500, 1, 2, 3, 4, 1100, 0, 33, 97, 96, 600, 0};

LayerOperands layer_of_odd_sizes(const std::vector<int64_t>& lengths = kOddLengths, int64_t slots = 23);

/// Writes into the gradient that a value, by its name, is given; of the value's shape.
using ChangeGradient = std::function<void(const std::string& name, const at::Tensor& gradient)>;

/// Values of compress, restore and the whole layer, and what reaches `leaves`, operands of the layer, when each value
/// is given a random gradient, the same in every call unless `change` writes into it.
std::vector<Named> results_of(const LayerOperands& layer, Backend backend, const std::vector<Named>& leaves,
                              const ChangeGradient& change = {});
/// The same with the gradients of all operands.
std::vector<Named> evaluate(LayerOperands layer, Backend backend);

void expect_identical(const std::vector<Named>& actual, const std::vector<Named>& expected);

}  // namespace dba::test

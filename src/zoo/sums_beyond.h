#pragma once

#include <ATen/core/Tensor.h>

namespace dba::zoo {

/// x (c, rows, a, b): of row i the sum of all rows up to i − before and of all from i + after on. Nothing is taken away
/// again from a sum over all rows: what is left may be far less than what would be.
at::Tensor sums_beyond(const at::Tensor& x, int64_t before, int64_t after);

}  // namespace dba::zoo

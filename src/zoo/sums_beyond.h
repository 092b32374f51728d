#pragma once

#include <ATen/core/Tensor.h>

namespace dba::zoo {

/// x (c, rows, a, b): of row i the sum of all rows up to i − before and of all from i + after on. Nothing is taken away
/// again from a sum over all rows: what is left may be far less than what would be. The operator dba::sums_beyond,
/// which libdba_cuda has a kernel for.
at::Tensor sums_beyond(const at::Tensor& x, int64_t before, int64_t after);

/// The same in plain operators, for devices and types without a kernel.
at::Tensor sums_beyond_composed(const at::Tensor& x, int64_t before, int64_t after);

/// What every kernel asks of its operands.
void check_sums_beyond(const at::Tensor& x, int64_t before, int64_t after);

}  // namespace dba::zoo

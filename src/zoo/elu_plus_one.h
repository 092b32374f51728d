#pragma once

#include <ATen/core/Tensor.h>

namespace dba::zoo {

/// elu(x) + 1 as exp(min(x, 0)) + max(x, 0): the sum would cancel what is left of exp(x) for very negative x. Its
/// derivative is exp(min(x, 0)) too, the smaller of the feature and 1.
at::Tensor elu_plus_one(const at::Tensor& x);

/// The steps of both ways in plain operators, for devices and types without a kernel. The operators
/// dba::elu_plus_one_forward and dba::elu_plus_one_backward, which libdba_cuda has kernels for, have no gradients.
at::Tensor elu_plus_one_composed(const at::Tensor& x);
at::Tensor elu_plus_one_backward_composed(const at::Tensor& dy, const at::Tensor& feature);

/// What every kernel asks of its operands.
void check_elu_plus_one_backward(const at::Tensor& dy, const at::Tensor& feature);

}  // namespace dba::zoo

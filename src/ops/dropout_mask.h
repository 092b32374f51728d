#pragma once

#include <ATen/core/Tensor.h>

namespace dba::ops {

/// Everything that the operator is given. Kernels read it through plain pointers, and rng even where p is 0.
void check_dropout_mask(const at::Tensor& rng, double p, const at::Tensor& sequence, const at::Tensor& first_token);

/// The operator `dba::dropout_mask`; see dba::ops::dropout_mask for the meaning. The reference leaves the checks to its
/// callers.
at::Tensor dropout_mask_reference(const at::Tensor& rng, double p, int64_t site, const at::Tensor& sequence,
                                  const at::Tensor& first_token, int64_t tokens, int64_t slots, at::ScalarType dtype);
at::Tensor dropout_mask_cpu(const at::Tensor& rng, double p, int64_t site, const at::Tensor& sequence,
                            const at::Tensor& first_token, int64_t tokens, int64_t slots, at::ScalarType dtype);

}  // namespace dba::ops

#pragma once

#include <ATen/core/Tensor.h>

namespace dba::ops {

/// The operator `dba::dropout_mask` as registered; see dba::ops::dropout_mask for the meaning.
at::Tensor dropout_mask_reference(const at::Tensor& rng, double p, int64_t site, const at::Tensor& sequence,
                                  const at::Tensor& first_token, int64_t tokens, int64_t slots, at::ScalarType dtype);
at::Tensor dropout_mask_cpu(const at::Tensor& rng, double p, int64_t site, const at::Tensor& sequence,
                            const at::Tensor& first_token, int64_t tokens, int64_t slots, at::ScalarType dtype);

}  // namespace dba::ops

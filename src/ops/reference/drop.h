#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include "dba/ops.h"

namespace dba::ops::reference {

/// `values` (N, d) after dropout at `site`.
inline at::Tensor drop(const at::Tensor& values, const Dropout& dropout, Site site) {
  if (dropout.p == 0) {
    return values;
  }
  const auto zero = at::zeros({1}, values.options().dtype(at::kLong));
  const auto mask = dropout_mask(dropout, site, zero, zero, values.size(0), values.size(1), values.scalar_type());
  return values * mask.squeeze(0);
}

}  // namespace dba::ops::reference

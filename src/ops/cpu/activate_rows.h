#pragma once

#include <ATen/ops/zeros.h>

#include "ops/activate_call.h"

/// `activate` for rows of bfloat16 without dropout: they need no tile, for nothing comes between reading and writing.
namespace dba::ops::cpu {

/// Rows whose gradients are summed up apart, for the gradient of the bias.
constexpr int64_t kRowsPerChunk = 64;

/// Whether a call is of that kind.
inline bool by_rows(const ActivateCall& call) {
  return call.hidden.scalar_type() == at::kBFloat16 && call.dropout.p == 0;
}

void forward_by_rows(const ActivateCall& call, const at::Tensor& y);

/// dy is bfloat16. Returns the sum of dhidden over rows, before rounding.
at::Tensor backward_by_rows(const ActivateCall& call, const at::Tensor& dy, const at::Tensor& dhidden);

/// The sum over rows of chunks, each (d) and `stride` from the next.
template <class A>
at::Tensor total_of_chunks(const A* partials, int64_t chunks, int64_t stride, int64_t d) {
  const at::Tensor total = at::zeros({d}, c10::CppTypeToScalarType<A>::value);
  auto* const totals = total.template mutable_data_ptr<A>();
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int64_t j = 0; j < d; ++j) {
      totals[j] += partials[chunk * stride + j];
    }
  }
  return total;
}

}  // namespace dba::ops::cpu

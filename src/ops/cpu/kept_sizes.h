#pragma once

#include "ops/cpu/core_weights.h"
#include "ops/cpu/kept_steps.h"

namespace dba::ops::cpu {

/// What a forward keeps for its backward. Restore's weights only without dropout: they are kept as they are multiplied.
template <class T>
KeptSizes kept_sizes(const Kernels<T>& kernels, const AttentionArguments& arguments, const PackedCore<T>& core) {
  const auto columns = [&](const at::Tensor& rows) {
    return rows.defined() ? padded_columns(kernels, rows.size(-2)) : 0;
  };
  return {arguments.x.size(0), columns(arguments.rows.each) + columns(arguments.rows.shared),
          arguments.dropout.p > 0 ? 0 : columns(arguments.restore_rows), arguments.sequences.count(),
          core.projected_width() * core.d_p};
}

}  // namespace dba::ops::cpu

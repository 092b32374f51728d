#pragma once

#include "dba/ops.h"

namespace dba::ops::cuda {

struct FusedCore {
  at::Tensor m, compressed;
  at::Tensor rounded;  ///< m in the type asked for
};

/// `core` with M rounded on the side, for a restore that reads it in the tokens' type. c of double: the reference.
/// Without `keep` nobody wants m but that restore, and it may be `rounded` itself.
FusedCore core_on_gpu(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights, int64_t heads,
                      const Dropout& dropout, at::ScalarType rounded, bool keep);

}  // namespace dba::ops::cuda

#pragma once

#include "dba/ops.h"

namespace dba::ops::cuda {

struct FusedCore {
  at::Tensor m;           ///< float; undefined where it was made in another type alone
  at::Tensor compressed;  ///< C
  at::Tensor rounded;     ///< m in the type asked for
  at::Tensor centred;     ///< m less the mean over the slots of each head, in that type; where somebody asked for it
};

struct WantedOfCore {
  at::ScalarType type = at::kFloat;
  bool centred = false;
};

/// `core` with M rounded on the side, for restore, which reads it in the tokens' type, and for its backward. c of
/// double: the reference.
FusedCore core_on_gpu(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights, int64_t heads,
                      const Dropout& dropout, const WantedOfCore& wanted);

/// `core_backward`: the gradients of c, r and the weights that are present. Without `wants_dr` that of r, which for
/// softmax rows without dropout is the gradient of a constant, may be undefined.
std::vector<at::Tensor> core_backward_on_gpu(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights,
                                             int64_t heads, const Dropout& dropout, const at::Tensor& dm,
                                             const at::Tensor& dcompressed, bool wants_dr);

}  // namespace dba::ops::cuda

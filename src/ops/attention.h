#pragma once

#include "ops/signatures.h"

namespace dba::ops {

/// What attention_forward keeps of M for backward. Kernels of a GPU read M in the tokens' type: there half tokens have
/// it rounded. What the rows of a head have in common does not pass the softmax over its slots, and is taken away
/// before: rows of long sequences hardly differ, and that is all that the gradient of the scores sees. Through dropout
/// and linear weights it passes, and M is rounded as it is.
struct KeptMixture {
  KeptMixture(const at::Tensor& x, bool linear, double dropout)
      : rounded(x.is_cuda() && (x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16)),
        centred(rounded && !linear && dropout == 0.0) {}
  bool rounded;
  bool centred;  ///< and rounded
};

/// The layer through compress, core and restore, whatever kernels these have.
signature::AttentionForward attention_forward_in_passes;
/// The layer's backward through its two passes and core_backward, whatever kernels these have.
signature::AttentionBackward attention_backward_in_passes;

}  // namespace dba::ops

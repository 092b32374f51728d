#pragma once

#include "ops/signatures.h"

namespace dba::ops {

/// The layer through compress, core and restore, whatever kernels these have.
signature::AttentionForward attention_forward_in_passes;
/// The layer's backward through its two passes and core_backward, whatever kernels these have.
signature::AttentionBackward attention_backward_in_passes;

}  // namespace dba::ops

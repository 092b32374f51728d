#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dba {

/// Whether a transform of functions (torch.func) or forward-mode differentiation watches x. They refuse autograd
/// functions of our own: plain operations serve then.
inline bool is_transformed(const at::Tensor& x) {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         x._fw_grad(/*level=*/0).defined();
}

}  // namespace dba

#pragma once

#include <ATen/core/Tensor.h>

namespace dba::zoo {

/// Hashes whose agreement can be counted in 16 bits.
inline constexpr int64_t kMostHashes = (1 << 15) - 1;

/// How many hashes send query and key to the same bucket: code_q (G, n, hashes), code_k (G, hashes, m), both int16 with
/// any 16 bits → (G, n, m) of `type`. The operator dba::code_agreement, which libdba_cuda has a kernel for.
at::Tensor agreement(const at::Tensor& code_q, const at::Tensor& code_k, at::ScalarType type);

/// The same in plain operators, for devices without a kernel.
at::Tensor agreement_composed(const at::Tensor& code_q, const at::Tensor& code_k, at::ScalarType type);

/// What every kernel asks of its operands.
void check_codes(const at::Tensor& code_q, const at::Tensor& code_k);

}  // namespace dba::zoo

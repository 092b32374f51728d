#pragma once

#include <ATen/core/Tensor.h>

namespace dba::zoo {

/// The real part of a transform over tokens and columns of real rows (B, n, width), of `type`, from its first columns:
/// half (B, n, ⌊width/2⌋ + 1), complex. Column width − j is column j with token t in the place of −t, conjugated. The
/// operator dba::real_spectrum, which libdba_cuda has a kernel for.
at::Tensor real_spectrum(const at::Tensor& half, int64_t width, at::ScalarType type);

/// The same in plain operators, for devices and types without a kernel.
at::Tensor real_spectrum_composed(const at::Tensor& half, int64_t width, at::ScalarType type);

/// What every kernel asks of its operands.
void check_real_spectrum(const at::Tensor& half, int64_t width, at::ScalarType type);

}  // namespace dba::zoo

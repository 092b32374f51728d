#pragma once

#include <optional>
#include <utility>

#include "ops/reference/passes.h"

/// The passes over tiles of tokens that stay in cache, for float32, float64, bfloat16 and float16 tokens. Each computes
/// what its namesake in ops/reference does; arguments are checked already. docs/cpu.md says how they are cut.
namespace dba::ops::cpu {

Summary compress(const at::Tensor& x, const Sequences& sequences, const ScoreRows& rows, const Dropout& dropout);

at::Tensor restore(const at::Tensor& x, const Sequences& sequences, const at::Tensor& rows, const at::Tensor& bias,
                   const at::Tensor& m, const at::Tensor& out_bias, int64_t heads, bool linear, const Dropout& dropout);

std::pair<at::Tensor, at::Tensor> slot_pass(const at::Tensor& x, const Sequences& sequences,
                                            const reference::RestoreBackward& restore);

reference::TokenGradients token_pass(const at::Tensor& x, const Sequences& sequences,
                                     const std::optional<reference::CompressBackward>& compress,
                                     const std::optional<reference::RestoreBackward>& restore);

/// Calls visit with a value of the accumulation type of `type`, float or double.
template <class Visit>
auto in_accumulation_type(at::ScalarType type, Visit visit) {
  return type == at::kDouble ? visit(double{}) : visit(float{});
}

}  // namespace dba::ops::cpu

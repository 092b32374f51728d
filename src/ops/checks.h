#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "dba/ops.h"

/// The checks at the operators' edge. Kernels trust their caller.
namespace dba::ops {

/// "float32 (3, 4) on cpu", or "nothing" for an undefined tensor.
std::string describe(const at::Tensor& tensor);

/// float32 for float16 and bfloat16, else the type itself.
at::ScalarType accumulation_type(at::ScalarType type);

/// Whether looking at the values costs no wait for a device, or debug mode pays for it.
bool values_can_be_checked(const at::Tensor& tensor);

/// `bounds`: what the caller's arguments are called.
void check_sequences(const char* function, const Sequences& sequences, const char* bounds = "begin and end");
/// For functions that are handed a Sequences: it was made for as many rows as x has.
void check_rows(const char* function, const at::Tensor& x, const Sequences& sequences);
void check_tokens(const char* function, const char* argument, const at::Tensor& x, const Sequences& sequences);
/// `operand` may be absent; it must lie on x's device and be of x's type or its accumulation type.
void check_operand(const char* function, const char* argument, const at::Tensor& operand, const at::Tensor& x);
/// Shape with −1 for "any"; an absent tensor passes where `optional`.
void check_shape(const char* function, const char* argument, const at::Tensor& tensor, at::IntArrayRef expected,
                 bool optional = false);
void check_heads(const char* function, int64_t heads, const char* argument, int64_t size);
void check_dropout(const char* function, const Dropout& dropout, at::Device device);

/// Everything that compress is given.
void check_compress(const at::Tensor& x, const Sequences& sequences, const ScoreRows& rows, const Dropout& dropout);
void check_score_rows(const char* function, const ScoreRows& rows, const at::Tensor& x, int64_t batch);
void check_restore(const char* function, const at::Tensor& x, const Sequences& sequences, const at::Tensor& rows,
                   const at::Tensor& bias, const at::Tensor& m, const at::Tensor& out_bias, int64_t heads);
void check_core(const char* function, const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights,
                int64_t heads);

}  // namespace dba::ops

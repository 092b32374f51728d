#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "dba/ops.h"
#include "ops/cuda/passes.h"

/// Tensors as the kernels of the passes want them. Everything here lives as long as the launch it is made for.
namespace dba::ops::cuda {

/// Why no fused kernel takes tokens of this type and width, or empty.
std::string tokens_obstacle(const at::Tensor& x);

Element element_of(at::ScalarType type);
/// Whether PyTorch's switch, set by either of its names (`fp32_precision`, `allow_tf32`), lets float32 products round
/// to TF32.
bool tf32_allowed();
int multiprocessors();
/// Whether the current device runs the Hopper kernels and they are not switched off.
bool hopper_chosen();

/// Contiguous, at an address that 16 bytes at once can be read from.
at::Tensor aligned(const at::Tensor& tensor);
/// Rows side by side; a copy where the strides or the address are not what the copy engine reads.
at::Tensor readable_rows(const at::Tensor& rows);
Matrix matrix_of(const at::Tensor& rows);

struct BoundsOperand {
  explicit BoundsOperand(const Sequences& sequences);
  at::Tensor begin, end;
  Bounds bounds() const;
};

struct RowsOperand {
  RowsOperand(const ScoreRows& rows, const at::Tensor& x);
  at::Tensor each, each_bias, shared, shared_bias;
  int linear;
  /// For kernels that read biases in float.
  void widen_biases();
  ScoreOperand operand() const;
};

struct DropoutOperand {
  explicit DropoutOperand(const Dropout& dropout);
  at::Tensor rng;
  double p;
  DropoutKey key() const;
};

/// A bias that is of x's type stays so, others become float; contiguous.
at::Tensor bias_of(const at::Tensor& bias, const at::Tensor& x);
/// Points to it in float or as elements, whichever it is.
void set_bias(const at::Tensor& bias, const float*& in_floats, const void*& as_elements);
/// In float and aligned; undefined stays undefined.
at::Tensor floats(const at::Tensor& tensor);
float* float_data(const at::Tensor& tensor);
/// M (B, S, d_out) less the mean over the slots of each head, in `type`.
at::Tensor centred(const at::Tensor& m, int64_t heads, at::ScalarType type);
/// Scratch of so many bytes; poisoned with NaN where DBA_POISON_SCRATCH=1 asks for it.
at::Tensor scratch(size_t bytes, const at::Tensor& like);

}  // namespace dba::ops::cuda

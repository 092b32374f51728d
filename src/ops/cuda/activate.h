#pragma once

#include <cstdint>

#include "ops/cuda/residual_norm.h"

/// Bias, activation and dropout in one pass: device pointers, sizes and a stream; no torch on this side.
/// Rows are contiguous. "Wide" is float, or double where the tokens are. Null: absent.
namespace dba::ops::cuda {

enum class ActivateKind { gelu, relu };

struct ActivateShape {
  TokenType type;
  ActivateKind kind;
  int64_t rows;
  int d;
  bool whole;  // all pointers allow 16-byte accesses and d is a multiple of residual_norm_columns
};

struct ActivateForward {
  ActivateShape shape;
  const void* hidden;  // (rows, d)
  const void* bias;    // (d) wide, or null
  ResidualDropout dropout;
  void* y;  // (rows, d)
};

struct ActivateBackward {
  ActivateShape shape;
  const void* hidden;  // (rows, d)
  const void* bias;    // (d) wide, or null
  ResidualDropout dropout;
  const void* dy;   // (rows, d)
  void* dhidden;    // (rows, d)
  void* dbias;      // (d) wide, or null
  void* workspace;  // activate_partials(...) · d wide, or null without dbias
};

/// How many partial sums over rows the backward keeps; a function of the shape alone.
int64_t activate_partials(const ActivateShape& shape);

cudaError_t activate_forward(const ActivateForward& given, cudaStream_t stream);
cudaError_t activate_backward(const ActivateBackward& given, cudaStream_t stream);

}  // namespace dba::ops::cuda

#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "ops/cuda/residual_norm.h"

/// Tensors as the kernels of the encoder's elementwise operators want them.
namespace dba::ops::cuda {

/// The kernels' name of a type, where they have one.
inline std::optional<TokenType> token_type(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return TokenType::float16;
    case at::kBFloat16:
      return TokenType::bfloat16;
    case at::kFloat:
      return TokenType::float32;
    case at::kDouble:
      return TokenType::float64;
    default:
      return std::nullopt;
  }
}

inline at::Tensor contiguous_or_absent(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.contiguous() : tensor;
}

/// Null for an absent tensor.
inline const void* read(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

/// Null for an absent or empty tensor.
inline void* write(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.mutable_data_ptr() : nullptr;
}

}  // namespace dba::ops::cuda

#pragma once

#include <torch/types.h>

namespace dba {

/// The type that `wide_matmul` gives: float32 for float16, whose range ends at 65504, where a product of rows arrives
/// long before the rows do; else the type itself.
inline at::ScalarType product_type(at::ScalarType type) {
  return type == at::kHalf ? at::kFloat : type;
}

/// a (…, n, w) times b (…, w, m), whatever autocast would make of them. Either may be wider than the other: a CPU
/// multiplies in float32 where one is float16, for which it has no instructions; everything else multiplies in the
/// narrower type.
at::Tensor wide_matmul(const at::Tensor& a, const at::Tensor& b);

}  // namespace dba

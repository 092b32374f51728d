#pragma once

#include <torch/types.h>

namespace dba {

/// The type that `wide_matmul` gives: float32 for float16, whose range ends at 65504, where a product of rows arrives
/// long before the rows do; else the type itself.
inline at::ScalarType product_type(at::ScalarType type) {
  return type == at::kHalf ? at::kFloat : type;
}

/// a (…, n, w) times b (…, w, m) in `type`, whatever autocast would make of them.
at::Tensor matmul_in(at::ScalarType type, const at::Tensor& a, const at::Tensor& b);

/// The same in the narrower of their types, with a result of its product_type; a and b have the same leading axes.
/// float16 is multiplied as such, by tensor cores, only on a GPU and where nothing is to be differentiated; elsewhere
/// as float32.
at::Tensor wide_matmul(const at::Tensor& a, const at::Tensor& b);

}  // namespace dba

#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace dba::bench {

/// The types of weights and tokens. `autocast`: float32 weights, products in bfloat16.
enum class Precision { float32, float64, bfloat16, float16, autocast };

/// Throws std::invalid_argument, which names the known ones.
Precision parse_precision(const std::string& name);
std::string to_string(Precision precision);

/// Of weights and tokens.
at::ScalarType storage_type(Precision precision);
/// In which the products are taken.
at::ScalarType compute_type(Precision precision);

}  // namespace dba::bench

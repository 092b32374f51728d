#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dba {

/// Rows of weight (V, d) by symbols (N): (N, d), under autocast in its type. The same as at::embedding, but on a GPU
/// the gradient of bfloat16 rows and a small vocabulary is a product: at::embedding sorts the symbols and adds the rows
/// of one symbol in few threads, which takes milliseconds where half of all symbols are the same one.
at::Tensor embed_symbols(const at::Tensor& weight, const at::Tensor& symbols);

/// The sum of the rows of `rows` (N, d) bfloat16 that have each symbol (N): (vocabulary, d) float32, as a product with
/// zeros and ones. Sums are float32 in a fixed order.
at::Tensor sums_by_symbol(const at::Tensor& rows, const at::Tensor& symbols, int64_t vocabulary);

}  // namespace dba

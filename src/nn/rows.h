#pragma once

#include <ATen/core/Tensor.h>

#include "dba/sequences.h"

/// What all modules do at their edge: a batch becomes rows, and rows of nobody lose whatever stood in them.
namespace dba {

/// x as (N, width), from (N, width) or (B, n, width) with N = B·n.
at::Tensor as_rows(const char* function, const char* argument, const at::Tensor& x, const Sequences& sequences,
                   int64_t width);

/// The sequences of a batch (B, n, …) of that many dimensions that has no padding.
Sequences plain_batch(const char* function, const char* argument, const at::Tensor& batch, int64_t dimensions);

/// (N) true for real rows; undefined where the host knows that all rows are real (a plain batch).
at::Tensor real_rows(const Sequences& sequences);

/// Zeros in the rows of nobody, whatever stood there (NaN too), and no gradient to them. rows (N, …), row_mask (N) or
/// undefined.
at::Tensor clear_rows(const at::Tensor& rows, const at::Tensor& row_mask);

/// A dropout rate lies in [0, 1).
void check_rate(const char* module, const char* option, double rate);
void check_positive(const char* module, const char* option, int64_t value);

}  // namespace dba

#pragma once

#include <torch/types.h>

#include "dba/sequences.h"

namespace dba {

/// Packed rows laid out as a padded batch, for what is written on dense tensors. Differentiable both ways.
class Padded {
 public:
  explicit Padded(const Sequences& sequences);
  /// (N, d) → (B, n, d), zero where there is no token.
  at::Tensor pad(const at::Tensor& rows) const;
  /// (B, n, d) → (N, d), zero in rows of nobody.
  at::Tensor unpad(const at::Tensor& padded) const;

  int64_t length;      ///< n
  at::Tensor valid;    ///< (B, n) bool
  at::Tensor lengths;  ///< (B)

 private:
  const Sequences& sequences_;
  at::Tensor row_;  // (B·n)
};

/// The tokens as rows (N, d): x is (N, d) or (B, n, d). Checks x against the sequences and the module's width.
at::Tensor token_rows(const char* module, const at::Tensor& x, const Sequences& sequences, int64_t d);

/// (N, ·) with zeros in the rows that lie in no sequence; a plain batch has none.
at::Tensor zero_rows_of_nobody(const at::Tensor& rows, const Sequences& sequences);

}  // namespace dba

#pragma once

#include <torch/types.h>

#include "dba/sequences.h"

namespace dba {

/// A batch whose sequences all have one length that the host knows, one behind the other: rows are tokens in place.
inline bool is_plain(const Sequences& sequences) {
  return sequences.consecutive && sequences.padded_length > 0 && sequences.count() > 0;
}

/// Rows moved to other places, none of them twice: row there[i] to place i, zeros where that is −1. there (M): the row
/// that comes to each place, or −1; back (N): the place that each row has gone to, or −1.
at::Tensor move_rows(const at::Tensor& rows, const at::Tensor& there, const at::Tensor& back);

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
  bool full;           ///< the host knows that every place has a token; `valid` hides nothing

 private:
  const Sequences& sequences_;
  at::Tensor row_;    // (B·n) the row at each place, −1 for none; undefined where all is in place
  at::Tensor place_;  // (N) the place of each row, −1 for rows of nobody
};

}  // namespace dba

#pragma once

#include <limits>
#include <vector>

#include "support/cases.h"

/// The same sequences as packed rows and as a padded batch. All of it is differentiable.
namespace dba::test {

inline Sequences padded_sequences(const PackedBatch& batch, int64_t length) {
  return Sequences::from_lengths(at::tensor(batch.lengths, at::kLong), length);
}

/// (N, …) packed rows as (B, length, …), with `filler` where there is no token.
inline at::Tensor padded(const at::Tensor& rows, const PackedBatch& batch, int64_t length, const at::Scalar& filler) {
  std::vector<at::Tensor> sequences;
  for (int64_t b = 0; b < batch.count(); ++b) {
    auto rest = rows.sizes().vec();
    rest[0] = length - batch.lengths[static_cast<size_t>(b)];
    sequences.push_back(at::cat({batch.rows_of(rows, b), at::full(rest, filler, rows.options())}));
  }
  return at::stack(sequences);
}

/// The real rows of a padded batch, packed.
inline at::Tensor unpadded(const at::Tensor& x, const PackedBatch& batch) {
  std::vector<at::Tensor> sequences;
  for (int64_t b = 0; b < batch.count(); ++b)
    sequences.push_back(x[b].slice(0, 0, batch.lengths[static_cast<size_t>(b)]));
  return at::cat(sequences);
}

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace dba::test

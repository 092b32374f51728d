#pragma once

#include <torch/types.h>

#include <utility>

#include "dba/sequences.h"

namespace dba {

/// Softmax attention of every token of a sequence to every other, on scaled_dot_product_attention; with dropout on the
/// CPU, where that would keep the map, on a transient one.
/// q, k (N, H·e), v (N, d) as rows; returns (N, d), zero in rows of nobody. Scale 1/√e.
///
/// A plain batch goes through in one call; on the CPU other batches go sequence by sequence; on a GPU packed half
/// precision takes the flash kernel for sequences of varying lengths, and everything else a padded batch with a mask.
at::Tensor full_map_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Sequences& sequences,
                              int64_t heads, double dropout);

/// The map itself, (B, H, n, n), zero outside the sequences; for whoever wants to look.
at::Tensor full_map_weights(const at::Tensor& q, const at::Tensor& k, const Sequences& sequences, int64_t heads);

}  // namespace dba

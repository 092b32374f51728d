#pragma once

#include <torch/types.h>

#include <vector>

#include "nn/transient_map.h"
#include "zoo/blocks.h"

namespace dba::zoo {

/// Softmax attention of queries (B, H, blocks, size, w) to the union of what they see, with the scale 1/√w; dropout, a
/// rate, acts on the map. A query that sees nothing gets a finite row. No map is kept: it stays inside PyTorch's fused
/// attention wherever that takes the mask and is not slower, and is transient elsewhere. key: what decides all masks,
/// where the host knows it.
at::Tensor attend_blocks(const at::Tensor& queries, const std::vector<Seen>& seen, double dropout,
                         const std::optional<ops::KeptKey>& key = {});

/// The same without blocks: queries (B, H, n, w), keys and values (B, H, m, w), a mask spreading to (B, H, n, m) or
/// undefined. Under autocast keys and values may be of another type than the queries.
at::Tensor attend_keys(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                       const at::Tensor& mask, double dropout, const std::optional<ops::KeptKey>& key = {});

/// Softmax attention of queries, keys and values (N, H·w) on one map of all pairs in a sequence, masked by `seen`
/// (B or 1, n, n) and by which keys exist: for sequences so short that blocks would spare little. key: what decides
/// `seen`, where the host knows it.
at::Tensor attend_on_a_map(const Blocks& whole, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& seen, int64_t heads, double dropout,
                           const std::optional<ops::KeptKey>& key);

/// Softmax attention of some queries (B, H, g, w) to all tokens of their sequences; keys and values as blocks.
at::Tensor attend_all(const at::Tensor& queries, const Blocks& blocks, const at::Tensor& keys, const at::Tensor& values,
                      double dropout);

}  // namespace dba::zoo

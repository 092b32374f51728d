#pragma once

#include <torch/types.h>

#include <vector>

#include "zoo/blocks.h"

namespace dba::zoo {

/// Keys and values that blocks of queries see, and where: keys (B, H, blocks or 1, m, w), values likewise, mask
/// spreading to (B, H, blocks, size, m), or undefined where all is seen.
struct Seen {
  at::Tensor keys, values, mask;
};

/// Softmax attention of queries (B, H, blocks, size, w) to the union of what they see, with the scale 1/√w; dropout, a
/// rate, acts on the map. A query that sees nothing gets a finite row. The map stays inside PyTorch's fused attention
/// wherever that takes the mask and is not slower.
at::Tensor attend_blocks(const at::Tensor& queries, const std::vector<Seen>& seen, double dropout);

/// Softmax attention of some queries (B, H, g, w) to all tokens of their sequences; keys and values as blocks.
at::Tensor attend_all(const at::Tensor& queries, const Blocks& blocks, const at::Tensor& keys, const at::Tensor& values,
                      double dropout);

}  // namespace dba::zoo

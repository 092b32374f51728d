#pragma once

#include "dba/ops.h"

namespace dba::test {

/// The dropout masks of one sequence in one layer, laid out as the equations are; undefined where nothing is dropped.
struct LayerMasks {
  std::vector<at::Tensor> compress;  ///< one (H, d_p, n) for each group of score rows
  at::Tensor core;                   ///< (H, d_p, d_p): query slot, key slot
  at::Tensor restore;                ///< (H, n, d_p)
};

/// `groups`: how many groups of H·d_p score rows the layer compresses with.
LayerMasks layer_masks(const ops::Dropout& dropout, int64_t sequence, int64_t n, int64_t heads, int64_t d_p,
                       int64_t groups);

/// The key that a module's next forward draws after torch::manual_seed(seed); leaves the generator at that seed.
ops::Dropout key_of_seed(double p, uint64_t seed);

}  // namespace dba::test

#pragma once

#include <torch/types.h>

namespace dba::zoo {

/// For every block of queries `random` different blocks of keys out of those that are neither the first nor the last of
/// the sequence nor within `beside` of the query's own: (B, H, blocks, random), −1 where no more are left. A choice
/// depends on the seed, the head, the block, its rank among the choices and the sequence's own number of blocks
/// counts[b] alone.
at::Tensor random_blocks(const at::Tensor& counts, int64_t heads, int64_t blocks, int64_t beside, int64_t random,
                         int64_t seed);

}  // namespace dba::zoo

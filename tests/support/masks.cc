#include "support/masks.h"

#include <torch/torch.h>

namespace dba::test {

LayerMasks layer_masks(const ops::Dropout& dropout, int64_t sequence, int64_t n, int64_t heads, int64_t d_p,
                       int64_t groups) {
  LayerMasks masks;
  masks.compress.resize(static_cast<size_t>(groups));
  if (dropout.p == 0)
    return masks;
  const at::Tensor which = at::tensor({sequence}, at::kLong);
  const at::Tensor from_start = at::zeros({1}, at::kLong);
  const int64_t slots = heads * d_p;
  const at::Tensor compress =
      ops::dropout_mask(dropout, ops::kSiteCompress, which, from_start, n, groups * slots, at::kDouble)[0];
  for (int64_t g = 0; g < groups; ++g)
    masks.compress[static_cast<size_t>(g)] = compress.slice(1, g * slots, (g + 1) * slots).t().reshape({heads, d_p, n});
  masks.core = ops::dropout_mask(dropout, ops::kSiteCore, which, from_start, d_p, slots, at::kDouble)[0].t().reshape(
      {heads, d_p, d_p});
  masks.restore = ops::dropout_mask(dropout, ops::kSiteRestore, which, from_start, n, slots, at::kDouble)[0]
                      .reshape({n, heads, d_p})
                      .transpose(0, 1);
  return masks;
}

ops::Dropout key_of_seed(double p, uint64_t seed) {
  torch::manual_seed(seed);
  const ops::Dropout dropout = p > 0 ? ops::Dropout::draw(p, at::kCPU) : ops::Dropout{};
  torch::manual_seed(seed);
  return dropout;
}

}  // namespace dba::test

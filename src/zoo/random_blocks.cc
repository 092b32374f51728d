#include "zoo/random_blocks.h"

#include <torch/torch.h>

#include <vector>

namespace dba::zoo {
namespace {

/// Numbers of 31 bits, scrambled; products stay below 2⁶².
at::Tensor scrambled(at::Tensor x) {
  constexpr int64_t kBits = (int64_t{1} << 31) - 1;
  for (const int64_t factor : {0x2c1b3c6d, 0x297a2d39, 0x5bd1e995}) {
    x = x.bitwise_and(kBits);
    x = x.bitwise_xor(x.bitwise_right_shift(15)).mul(factor).bitwise_and(kBits);
    x = x.bitwise_xor(x.bitwise_right_shift(13));
  }
  return x;
}

}  // namespace

at::Tensor random_blocks(const at::Tensor& counts, int64_t heads, int64_t blocks, int64_t beside, int64_t random,
                         int64_t seed) {
  const auto options = counts.options();
  const auto count = counts.view({-1, 1, 1});
  const auto own = torch::arange(blocks, options).view({1, 1, -1});
  const auto head = torch::arange(heads, options).view({1, -1, 1});
  const auto of_seed = scrambled(torch::full({}, seed % (int64_t{1} << 30) + 1, options));
  const auto stream = scrambled(scrambled(of_seed + head + 1) + own);

  // Blocks 1 … count − 2 without the gap [low, high] around the query's own.
  const auto low = (own - beside).clamp_min(1);
  const auto high = torch::minimum(own + beside, count - 2);
  const auto gap = (high - low + 1).clamp_min(0);
  const auto eligible = (count - 2 - gap).clamp_min(0).expand({-1, heads, -1});

  std::vector<at::Tensor> taken;
  for (int64_t rank = 0; rank < random; ++rank) {
    const auto left = eligible - rank;
    auto pick = scrambled(stream + (rank + 1) * 0x3504f333).remainder(left.clamp_min(1));
    // The pick counts those that are left: it moves past every earlier one, in ascending order.
    if (rank > 0) {
      const auto earlier = std::get<0>(torch::stack(taken, 3).sort(3));
      for (int64_t i = 0; i < rank; ++i) {
        pick = pick + pick.ge(earlier.select(3, i)).to(at::kLong);
      }
    }
    taken.push_back(pick.masked_fill(left.le(0), blocks + rank));
  }
  if (random == 0) {
    return torch::empty({counts.size(0), heads, blocks, 0}, options);
  }
  const auto picks = torch::stack(taken, 3);
  const auto block = picks + 1;
  const auto moved = torch::where(block.ge(low.unsqueeze(3)), block + gap.unsqueeze(3), block);
  return moved.masked_fill(picks.ge(eligible.unsqueeze(3)), -1);
}

}  // namespace dba::zoo

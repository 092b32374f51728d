#include "zoo/random_blocks.h"

#include <torch/torch.h>

#include <algorithm>
#include <vector>

namespace dba::zoo {
namespace {

using at::Tensor;

/// Numbers of 31 bits, scrambled; products stay below 2⁶².
Tensor scrambled(Tensor x) {
  constexpr int64_t kBits = (int64_t{1} << 31) - 1;
  x = x.bitwise_and(kBits);
  x = x.bitwise_xor(x.bitwise_right_shift(16)).mul(0x7feb352d).bitwise_and(kBits);
  x = x.bitwise_xor(x.bitwise_right_shift(15)).mul(0x2c1b3c6d).bitwise_and(kBits);
  return x.bitwise_xor(x.bitwise_right_shift(16));
}

/// first, first + step, …: numbers that are far apart, so that what is added to them does not make two of them equal.
Tensor steps(int64_t first, int64_t count, int64_t step, at::TensorOptions options) {
  return torch::arange(first, first + count * step, step, options);
}

/// picks (…, random), of which pick r counts what the earlier ones have left: as numbers of all.
Tensor counted_among_all(const Tensor& picks) {
  std::vector<Tensor> ascending, numbers;
  for (auto pick : picks.unbind(-1)) {
    for (const auto& earlier : ascending) {
      pick = pick + pick.ge(earlier);
    }
    numbers.push_back(pick);
    for (auto& place : ascending) {
      const auto lower = torch::minimum(place, pick);
      pick = torch::maximum(place, pick);
      place = lower;
    }
    ascending.push_back(pick);
  }
  return torch::stack(numbers, -1);
}

}  // namespace

at::Tensor random_blocks(const at::Tensor& counts, int64_t heads, int64_t blocks, int64_t beside, int64_t random,
                         int64_t seed) {
  const auto options = counts.options();
  if (random == 0) {
    return torch::empty({counts.size(0), heads, blocks, 0}, options);
  }
  const auto count = counts.view({-1, 1, 1, 1});
  const auto own = torch::arange(blocks, options).view({1, 1, -1, 1});

  // Blocks 1 … count − 2 without the gap [low, high] around the query's own.
  const auto low = (own - beside).clamp_min(1);
  const auto high = torch::minimum(own + beside, count - 2);
  const auto gap = (high - low + 1).clamp_min(0);
  const auto left = (count - 2 - gap).clamp_min(0) - torch::arange(random, options);  // (B, 1, blocks, random)

  constexpr int64_t kSeeds = int64_t{1} << 30, kOfSeed = 0x5bd1e995, kOfHead = 0x297a2d39, kOfRank = 0x3504f333;
  const auto of_head = steps((seed % kSeeds + 1) * kOfSeed, heads, kOfHead, options).view({1, -1, 1, 1});
  const auto draws = scrambled(scrambled(of_head + own) + steps(0, random, kOfRank, options));
  const auto block = counted_among_all(draws.remainder(left.clamp_min(1))) + 1;
  return torch::where(block.ge(low), block + gap, block).masked_fill(left.le(0), -1);
}

}  // namespace dba::zoo

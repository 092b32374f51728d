#include "ops/dropout_mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>

#include <array>
#include <utility>

#include "ops/philox.h"

namespace dba::ops {
namespace {

constexpr int64_t kLow32 = 0xFFFFFFFF;

at::Tensor low(const at::Tensor& value) {
  return value.bitwise_and(kLow32);
}

// The arithmetic shift smears the sign bit over the upper half only, which `low` removes.
at::Tensor high(const at::Tensor& value) {
  return low(value.bitwise_right_shift(at::Scalar(int64_t{32})));
}

}  // namespace

/// Philox in 64-bit integer tensors: a product of two 32-bit words wraps around, but its 64 bits are right.
at::Tensor dropout_mask_reference(const at::Tensor& rng, double p, int64_t site, const at::Tensor& sequence,
                                  const at::Tensor& first_token, int64_t tokens, int64_t slots, at::ScalarType dtype) {
  const auto integers = first_token.options();
  const auto token = first_token.unsqueeze(1) + at::arange(tokens, integers);  // (P, tokens)
  const auto seed = rng.select(0, 0);
  const auto offset = rng.select(0, 1);
  auto key0 = low(seed);
  auto key1 = high(seed).bitwise_xor(high(offset));
  const auto shape = std::array<int64_t, 3>{sequence.size(0), tokens, slots};
  std::array<at::Tensor, 4> counter = {
      low(token.bitwise_right_shift(at::Scalar(int64_t{2}))).unsqueeze(2).expand(shape),
      at::arange(slots, integers).bitwise_or(site << 24).expand(shape),
      low(sequence).view({-1, 1, 1}).expand(shape),
      low(offset).expand(shape),
  };
  for (int round = 0; round < philox::kRounds; ++round) {
    const auto product0 = counter[0] * static_cast<int64_t>(philox::kMultiplier0);
    const auto product1 = counter[2] * static_cast<int64_t>(philox::kMultiplier1);
    counter = {high(product1).bitwise_xor(counter[1]).bitwise_xor(key0), low(product1),
               high(product0).bitwise_xor(counter[3]).bitwise_xor(key1), low(product0)};
    key0 = low(key0 + static_cast<int64_t>(philox::kWeyl0));
    key1 = low(key1 + static_cast<int64_t>(philox::kWeyl1));
  }
  const auto word_index = token.bitwise_and(3).unsqueeze(2).expand(shape);
  auto word = counter[0];
  for (int64_t index = 1; index < 4; ++index) {
    word = at::where(word_index.eq(index), counter[index], word);
  }
  const auto kept = word.ge(static_cast<int64_t>(philox::threshold(p)));
  return kept.to(dtype).mul_(1.0 / (1.0 - p));
}

}  // namespace dba::ops

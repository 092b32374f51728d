#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dba/ops.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "support/plain_operators.h"

namespace dba::test {
namespace {

constexpr int64_t kOut = 5;

class Restore : public ::testing::TestWithParam<LayerCase> {};

TEST_P(Restore, EqualsItsDefinitionWithAllGradients) {
  const LayerCase& layer = GetParam();
  Random random(31);
  const PackedBatch batch(kLengths);
  const int64_t slots = layer.heads * layer.d_p;
  const at::Tensor x = random.leaf({batch.rows, LayerCase::d});
  const at::Tensor m = random.leaf({batch.count(), slots, kOut});
  const ops::Dropout dropout{layer.dropout, at::tensor({int64_t{3}, int64_t{9}}, at::kLong)};
  std::vector<Named> inputs = {{"x", x}, {"m", m}};
  const auto leaf = [&](const std::string& name, std::vector<int64_t> sizes, double deviation) {
    if (layer.per_sequence)
      sizes.insert(sizes.begin(), batch.count());
    inputs.push_back({name, random.leaf(sizes, deviation)});
    return inputs.back().tensor;
  };
  const at::Tensor rows = leaf("rows", {slots, LayerCase::d}, 0.3);
  at::Tensor bias, out_bias;
  if (layer.bias) {
    bias = leaf("bias", {slots}, 0.5);
    out_bias = random.leaf({kOut});
    inputs.push_back({"out_bias", out_bias});
  }
  const at::Tensor got = ops::restore(x, batch.sequences, rows, bias, m, out_bias, layer.heads, layer.linear, dropout);
  expect_same_function({{"y", got}},
                       {plain_restore(x, batch, rows, bias, m, out_bias, layer.heads, layer.linear, dropout)}, inputs);
}

INSTANTIATE_TEST_SUITE_P(Layers, Restore, ::testing::ValuesIn(layer_cases()), case_name);

TEST(RestoreOperator, StreamsALongSequenceInChunks) {
  Random random(33);
  const PackedBatch batch({20000, 3, 7001});
  const at::Tensor x = random.leaf({batch.rows, 4});
  const at::Tensor rows = random.leaf({6, 4}), bias = random.leaf({6});
  const at::Tensor m = random.leaf({3, 6, 4}), out_bias = random.leaf({4});
  const ops::Dropout dropout{0.2, at::tensor({int64_t{1}, int64_t{2}}, at::kLong)};
  expect_same_function({{"y", ops::restore(x, batch.sequences, rows, bias, m, out_bias, 2, false, dropout)}},
                       {plain_restore(x, batch, rows, bias, m, out_bias, 2, false, dropout)},
                       {{"x", x}, {"rows", rows}, {"bias", bias}, {"m", m}, {"out_bias", out_bias}});
}

TEST(RestoreOperator, RowsOfNobodyAreNotReadAndComeOutZero) {
  Random random(34);
  const at::Tensor clean = random.normal({20, 6});
  at::Tensor dirty = clean.clone();
  dirty.slice(0, 0, 3).fill_(NAN);
  dirty.slice(0, 8, 12).fill_(INFINITY);
  dirty.requires_grad_(true);
  const Sequences sequences = Sequences::ranges(at::tensor({int64_t{3}, int64_t{12}}, at::kLong),
                                                at::tensor({int64_t{8}, int64_t{20}}, at::kLong), 20);
  const at::Tensor rows = random.leaf({4, 6}), m = random.leaf({2, 4, kOut}), out_bias = random.leaf({kOut});
  const at::Tensor from_clean = ops::restore(clean, sequences, rows, {}, m, out_bias, 2);
  const at::Tensor from_dirty = ops::restore(dirty, sequences, rows, {}, m, out_bias, 2);
  EXPECT_TRUE(identical(from_dirty, from_clean));
  EXPECT_EQ(from_dirty.slice(0, 0, 3).abs().sum().item<double>(), 0);
  EXPECT_EQ(from_dirty.slice(0, 8, 12).abs().sum().item<double>(), 0);
  // A gradient that arrives at a row of nobody is not read either.
  at::Tensor arriving = random.normal({20, kOut});
  const auto expected = torch::autograd::grad({from_dirty}, {dirty, rows, m, out_bias}, {arriving.clone()}, true);
  arriving.slice(0, 0, 3).fill_(NAN);
  const auto got = torch::autograd::grad({from_dirty}, {dirty, rows, m, out_bias}, {arriving});
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(all_finite(got[i])) << i;
    EXPECT_TRUE(identical(got[i], expected[i])) << i;
  }
  EXPECT_EQ(got[0].slice(0, 0, 3).abs().sum().item<double>(), 0);
  EXPECT_EQ(got[0].slice(0, 8, 12).abs().sum().item<double>(), 0);
  EXPECT_GT(got[0].slice(0, 3, 8).abs().sum().item<double>(), 0);
}

TEST(RestoreOperator, TakesAnyStrides) {
  Random random(35);
  const PackedBatch batch({7, 0, 12});
  const at::Tensor x = random.normal({6, 2 * batch.rows}).t().slice(0, 0, 2 * batch.rows, 2);
  const at::Tensor rows = random.normal({6, 4}).t();
  const at::Tensor bias = random.normal({1}).expand({4});
  const at::Tensor m = random.normal({kOut, 4}).t().unsqueeze(0).expand({3, 4, kOut});
  const at::Tensor out_bias = random.normal({2 * kOut}).slice(0, 0, 2 * kOut, 2);
  EXPECT_TRUE(close(ops::restore(x, batch.sequences, rows, bias, m, out_bias, 2),
                    ops::restore(x.contiguous(), batch.sequences, rows.contiguous(), bias.contiguous(), m.contiguous(),
                                 out_bias.contiguous(), 2)));
}

}  // namespace
}  // namespace dba::test

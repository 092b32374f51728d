#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "dba/sequences.h"
#include "support/attention_kinds.h"
#include "support/cases.h"
#include "support/comparison.h"

/// Where sequences lie among the rows, and that nothing but their own rows reaches them.
namespace dba::test {
namespace {

at::Tensor padded_from(const at::Tensor& x, const PackedBatch& batch, int64_t length, double fill) {
  at::Tensor padded = at::full({batch.count(), length, x.size(1)}, fill, x.options());
  for (int64_t b = 0; b < batch.count(); ++b)
    padded[b].slice(0, 0, batch.lengths[static_cast<size_t>(b)]).copy_(batch.rows_of(x, b));
  return padded;
}

TEST(SequencesMakers, DescribeTheSameBatch) {
  const Sequences packed = Sequences::packed(longs({0, 3, 3, 5}), 7);
  EXPECT_EQ(packed.count(), 3);
  EXPECT_EQ(packed.rows, 7);
  EXPECT_EQ(packed.padded_length, -1);
  EXPECT_TRUE(identical(packed.lengths(), longs({3, 0, 2})));
  EXPECT_TRUE(identical(packed.sequence_of_row(), longs({0, 0, 0, 2, 2, -1, -1})));
  EXPECT_TRUE(identical(packed.position_of_row(), longs({0, 1, 2, 0, 1, 0, 0})));
  EXPECT_TRUE(identical(packed.row_mask(), packed.sequence_of_row().ge(0)));

  const Sequences padded = Sequences::from_lengths(longs({2, 0, 3}), 3);
  EXPECT_EQ(padded.rows, 9);
  EXPECT_EQ(padded.padded_length, 3);
  EXPECT_TRUE(identical(padded.begin, longs({0, 3, 6})));
  EXPECT_TRUE(identical(padded.end, longs({2, 3, 9})));
  EXPECT_TRUE(identical(padded.sequence_of_row(), longs({0, 0, -1, -1, -1, -1, 2, 2, 2})));

  const at::Tensor mask = longs({0, 1, 1, 0, 0, 0, 1, 1, 1}).reshape({3, 3}).to(at::kBool);
  const Sequences masked = Sequences::from_mask(mask);
  EXPECT_EQ(masked.padded_length, 3);
  EXPECT_TRUE(identical(masked.lengths(), longs({2, 0, 3})));
  EXPECT_TRUE(identical(masked.row_mask(), mask.reshape({9})));
  EXPECT_TRUE(identical(masked.position_of_row(), longs({0, 0, 1, 0, 0, 0, 0, 1, 2})));

  const Sequences dense = Sequences::dense(2, 3, at::kCPU);
  EXPECT_EQ(dense.padded_length, 3);
  EXPECT_TRUE(identical(dense.begin, longs({0, 3})));
  EXPECT_TRUE(identical(dense.end, longs({3, 6})));

  const Sequences gaps = Sequences::ranges(longs({1, 4}), longs({2, 6}), 8);
  EXPECT_TRUE(identical(gaps.sequence_of_row(), longs({-1, 0, -1, -1, 1, 1, -1, -1})));

  EXPECT_TRUE(identical(Sequences::packed(longs({0, 2, 5}).to(at::kInt), 5).end, longs({2, 5})));
}

TEST(SequencesMakers, TakeBatchesWithoutSequencesOrRows) {
  EXPECT_EQ(Sequences::packed(longs({0}), 0).count(), 0);
  EXPECT_EQ(Sequences::from_lengths(longs({0, 0}), 0).rows, 0);
  EXPECT_EQ(Sequences::dense(0, 4, at::kCPU).count(), 0);
}

class Isolation : public ::testing::TestWithParam<size_t> {
 protected:
  Random random{122};
  AttentionKind kind = attention_kinds(random)[GetParam()];
  PackedBatch batch{{4, 0, 9, 1}};
  at::Tensor x = random.normal({batch.rows, 8});
};

TEST_P(Isolation, TakesBatchesWithoutSequencesOrRows) {
  const at::Tensor x = random.leaf({0, 8});
  const AttentionOutput output = kind.run(x, Sequences::packed(longs({0, 0, 0}), 0));
  EXPECT_EQ(output.y.sizes(), at::IntArrayRef({0, 8}));
  for (at::Tensor& parameter : kind.module->parameters())
    parameter.mutable_grad() = at::Tensor();
  output.y.sum().backward();
  for (const auto& parameter : kind.module->named_parameters()) {
    const at::Tensor gradient = parameter.value().grad();
    EXPECT_TRUE(!gradient.defined() || all_finite(gradient)) << parameter.key();
  }
  EXPECT_EQ(kind.run(random.normal({3, 8}), Sequences::packed(longs({0}), 3)).y.abs().sum().item<double>(), 0);
}

TEST_P(Isolation, WhatThePaddingHoldsChangesNoBit) {
  const Sequences sequences = Sequences::from_lengths(longs(batch.lengths), 9);
  const auto run = [&](double fill) {
    const at::Tensor padded = padded_from(x, batch, 9, fill).requires_grad_(true);
    const at::Tensor y = kind.run(padded, sequences).y;
    return std::pair(y.detach(), torch::autograd::grad({random_projection({y}, 5)}, {padded})[0]);
  };
  const auto [y, gradient] = run(0.0);
  EXPECT_EQ(y.reshape({-1, 8}).index({sequences.row_mask().logical_not()}).abs().sum().item<double>(), 0);
  EXPECT_EQ(gradient.reshape({-1, 8}).index({sequences.row_mask().logical_not()}).abs().sum().item<double>(), 0);
  for (const double fill : {1e30, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    const auto [other_y, other_gradient] = run(fill);
    EXPECT_TRUE(identical(other_y, y)) << fill;
    EXPECT_TRUE(identical(other_gradient, gradient)) << fill;
  }
}

TEST_P(Isolation, PackedEqualsPaddedEqualsOneByOne) {
  const at::Tensor tokens = x.clone().requires_grad_(true);
  const at::Tensor packed = kind.run(tokens, batch.sequences).y;

  std::vector<at::Tensor> alone;
  for (int64_t b = 0; b < batch.count(); ++b)
    alone.push_back(
        kind.run(batch.rows_of(tokens, b), PackedBatch({batch.lengths[static_cast<size_t>(b)]}).sequences).y);
  const at::Tensor one_by_one = at::cat(alone);
  expect_same_function({{"packed", packed}}, {one_by_one}, with_parameters({{"x", tokens}}, *kind.module));

  for (const int64_t length : {9, 14}) {
    std::vector<at::Tensor> padded_rows;
    for (int64_t b = 0; b < batch.count(); ++b) {
      const at::Tensor own = batch.rows_of(tokens, b);
      padded_rows.push_back(at::cat({own, at::ones({length - own.size(0), 8}, at::kDouble)}));
    }
    const Sequences sequences = Sequences::from_lengths(longs(batch.lengths), length);
    const at::Tensor padded = kind.run(at::stack(padded_rows), sequences).y;
    EXPECT_EQ(padded.sizes(), at::IntArrayRef({4, length, 8}));
    expect_same_function({{"padded", padded.reshape({-1, 8}).index({sequences.row_mask()})}},
                         {kind.run(tokens, batch.sequences).y}, with_parameters({{"x", tokens}}, *kind.module));
  }
}

TEST_P(Isolation, RangesWithGapsLeaveTheRestZero) {
  const Sequences gaps = Sequences::ranges(longs({2, 7, 9, 20}), longs({6, 7, 18, 21}), 25);
  const at::Tensor own = gaps.row_mask();
  at::Tensor rows = at::full({25, 8}, NAN, at::kDouble);
  rows.index_put_({own}, x);
  rows.requires_grad_(true);
  const at::Tensor y = kind.run(rows, gaps).y;
  EXPECT_TRUE(close(y.index({own}), kind.run(x, batch.sequences).y));
  EXPECT_EQ(y.index({own.logical_not()}).abs().sum().item<double>(), 0);
  const at::Tensor gradient = torch::autograd::grad({random_projection({y}, 6)}, {rows})[0];
  EXPECT_TRUE(all_finite(gradient));
  EXPECT_EQ(gradient.index({own.logical_not()}).abs().sum().item<double>(), 0);
  EXPECT_GT(gradient.index({own}).abs().sum().item<double>(), 0);
}

TEST_P(Isolation, PermutingTokensPermutesOutputs) {
  const at::Tensor tokens = random.normal({40, 8});
  const at::Tensor order = random.permutation(40);
  const Sequences one = PackedBatch({40}).sequences;
  const AttentionOutput straight = kind.run(tokens, one), permuted = kind.run(tokens.index_select(0, order), one);
  EXPECT_TRUE(close(permuted.y, straight.y.index_select(0, order)));
  if (kind.z.defined()) {
    EXPECT_TRUE(close(permuted.z, straight.z));
  }
}

TEST_P(Isolation, NaNAndInfinityStayInTheirSequence) {
  const auto run = [&](double poison) {
    at::Tensor tokens = x.clone();
    tokens[6][3] = poison;  // in sequence 2
    tokens.requires_grad_(true);
    const at::Tensor y = kind.run(tokens, batch.sequences).y;
    return std::pair(y.detach(), torch::autograd::grad({random_projection({y}, 7)}, {tokens})[0]);
  };
  const auto [y, gradient] = run(0.5);
  for (const double poison : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    const auto [poisoned_y, poisoned_gradient] = run(poison);
    EXPECT_FALSE(poisoned_y.slice(0, 4, 13).isfinite().all().item<bool>()) << "the poison vanished";
    for (const int64_t b : {0, 1, 3}) {
      EXPECT_TRUE(identical(batch.rows_of(poisoned_y, b), batch.rows_of(y, b))) << b;
      EXPECT_TRUE(identical(batch.rows_of(poisoned_gradient, b), batch.rows_of(gradient, b))) << b;
    }
  }
}

TEST_P(Isolation, AnEmptyBatchMateCostsNothing) {
  const at::Tensor tokens = x.clone().requires_grad_(true);
  const AttentionOutput output = kind.run(tokens, batch.sequences);
  for (at::Tensor& parameter : kind.module->parameters())
    parameter.mutable_grad() = at::Tensor();
  std::vector<at::Tensor> outputs = {output.y};
  if (kind.z.defined()) {
    EXPECT_EQ(output.z[1].abs().sum().item<double>(), 0) << "C of an empty sequence";
    outputs.push_back(output.z);
  }
  random_projection(outputs, 8).backward();
  EXPECT_TRUE(all_finite(tokens.grad()));
  for (const auto& parameter : kind.module->named_parameters())
    EXPECT_TRUE(all_finite(parameter.value().grad())) << parameter.key();
}

INSTANTIATE_TEST_SUITE_P(Kinds, Isolation, ::testing::Range(size_t{0}, kAttentionKinds.size()),
                         [](const auto& info) { return kAttentionKinds[info.param]; });

}  // namespace
}  // namespace dba::test

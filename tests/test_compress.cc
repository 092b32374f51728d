#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "dba/ops.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "support/plain_operators.h"

namespace dba::test {
namespace {

constexpr int64_t kWidth = 8;

struct RowsCase {
  std::string name;
  int64_t each;
  int64_t shared;
  int64_t linear;
  bool bias;
  double dropout;
};

std::vector<RowsCase> rows_cases() {
  return {{"shared", 0, 5, 0, false, 0.0},
          {"each", 3, 0, 0, true, 0.0},
          {"each_and_shared", 4, 3, 0, true, 0.3},
          {"all_linear", 0, 6, 6, true, 0.3},
          {"linear_within_shared", 2, 5, 3, true, 0.0},
          {"linear_reaching_into_each", 3, 2, 4, false, 0.3},
          {"one_row", 1, 0, 0, false, 0.0},
          {"many_rows", 130, 70, 65, true, 0.3}};
}

class Compress : public ::testing::TestWithParam<RowsCase> {
 protected:
  Random random{21};
  PackedBatch batch{kLengths};
  at::Tensor x = random.leaf({batch.rows, kWidth});

  ops::ScoreRows rows() {
    const RowsCase& given = GetParam();
    ops::ScoreRows made;
    made.linear = given.linear;
    if (given.each > 0)
      made.each = random.leaf({batch.count(), given.each, kWidth}, 0.5);
    if (given.shared > 0)
      made.shared = random.leaf({given.shared, kWidth}, 0.5);
    if (given.bias && given.each > 0)
      made.each_bias = random.leaf({batch.count(), given.each});
    if (given.bias && given.shared > 0)
      made.shared_bias = random.leaf({given.shared});
    return made;
  }
  ops::Dropout dropout() const {
    return {GetParam().dropout, at::tensor({int64_t{77}, int64_t{5}}, at::kLong)};
  }
};

std::vector<Named> inputs_of(const at::Tensor& x, const ops::ScoreRows& rows) {
  std::vector<Named> inputs = {{"x", x}};
  const std::vector<Named> optional = {
      {"each", rows.each}, {"each_bias", rows.each_bias}, {"shared", rows.shared}, {"shared_bias", rows.shared_bias}};
  for (const Named& input : optional)
    if (input.tensor.defined())
      inputs.push_back(input);
  return inputs;
}

/// The log-sum-exp of an empty sequence is −inf and passes no gradient.
TEST_P(Compress, EqualsItsDefinitionWithAllGradients) {
  const ops::ScoreRows given = rows();
  const ops::Summary got = ops::compress(x, batch.sequences, given, dropout());
  const ops::Summary expected = plain_compress(x, batch, given, dropout());
  EXPECT_TRUE(identical(got.lse.isinf(), expected.lse.isinf()));
  expect_same_function({{"c", got.c}, {"r", got.r}, {"lse", finite_part(got.lse)}},
                       {expected.c, expected.r, finite_part(expected.lse)}, inputs_of(x, given));
}

/// Without dropout: a mask belongs to the token's place in its sequence, which a chunk does not know.
TEST_P(Compress, MergesTheSummariesOfChunks) {
  const torch::NoGradGuard no_grad;
  const ops::ScoreRows given = rows();
  const ops::Summary whole = ops::compress(x, batch.sequences, given);
  const auto part = [&](double from, double to) {
    std::vector<int64_t> begin, end;
    for (int64_t b = 0; b < batch.count(); ++b) {
      const auto at_share = [&](double share) {
        return batch.begin[b] + static_cast<int64_t>(std::floor(share * static_cast<double>(batch.lengths[b])));
      };
      begin.push_back(at_share(from));
      end.push_back(at_share(to));
    }
    const Sequences chunk = Sequences::ranges(at::tensor(begin, at::kLong), at::tensor(end, at::kLong), batch.rows);
    return ops::compress(x, chunk, given);
  };
  const ops::Summary first = part(0.0, 0.3);
  const ops::Summary empty = part(0.3, 0.3);
  const ops::Summary second = part(0.3, 0.8);
  const ops::Summary third = part(0.8, 1.0);
  const ops::Summary in_order = ops::merge(ops::merge(ops::merge(first, empty), second), third);
  const ops::Summary backwards = ops::merge(third, ops::merge(second, ops::merge(empty, first)));
  for (const ops::Summary& merged : {in_order, backwards}) {
    EXPECT_TRUE(close(merged.c, whole.c));
    EXPECT_TRUE(close(merged.r, whole.r));
    EXPECT_TRUE(identical(merged.lse.isinf(), whole.lse.isinf()));
    EXPECT_TRUE(close(finite_part(merged.lse), finite_part(whole.lse)));
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, Compress, ::testing::ValuesIn(rows_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(CompressOperator, MergedSummariesHaveTheGradientOfTheWhole) {
  Random random(22);
  const at::Tensor x = random.leaf({40, kWidth});
  ops::ScoreRows rows;
  rows.shared = random.leaf({5, kWidth});
  rows.linear = 2;
  const PackedBatch batch({40});
  const ops::Summary whole = ops::compress(x, batch.sequences, rows);
  const auto chunk = [&](int64_t begin, int64_t end) {
    return ops::compress(x, Sequences::ranges(at::tensor({begin}, at::kLong), at::tensor({end}, at::kLong), 40), rows);
  };
  const ops::Summary merged = ops::merge(chunk(0, 13), ops::merge(chunk(13, 13), chunk(13, 40)));
  expect_same_function({{"c", merged.c}, {"r", merged.r}, {"lse", merged.lse}}, {whole.c, whole.r, whole.lse},
                       {{"x", x}, {"shared", rows.shared}});
}

TEST(CompressOperator, StreamsALongSequenceInChunks) {
  Random random(23);
  const PackedBatch batch({20000, 3, 7001});
  const at::Tensor x = random.leaf({batch.rows, 4});
  ops::ScoreRows rows;
  rows.each = random.leaf({3, 6, 4});
  rows.shared = random.leaf({4, 4});
  rows.linear = 2;
  const ops::Dropout dropout{0.2, at::tensor({int64_t{1}, int64_t{2}}, at::kLong)};
  const ops::Summary got = ops::compress(x, batch.sequences, rows, dropout);
  const ops::Summary expected = plain_compress(x, batch, rows, dropout);
  expect_same_function({{"c", got.c}, {"r", got.r}, {"lse", got.lse}}, {expected.c, expected.r, expected.lse},
                       {{"x", x}, {"each", rows.each}, {"shared", rows.shared}});
}

TEST(CompressOperator, RowsOfNobodyAreNotRead) {
  Random random(24);
  const at::Tensor clean = random.normal({30, kWidth});
  at::Tensor dirty = clean.clone();
  for (const auto& [from, to] : std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {9, 14}, {20, 30}})
    dirty.slice(0, from, to).fill_(NAN);
  dirty.requires_grad_(true);
  const Sequences sequences = Sequences::ranges(at::tensor({int64_t{2}, int64_t{9}, int64_t{14}}, at::kLong),
                                                at::tensor({int64_t{9}, int64_t{9}, int64_t{20}}, at::kLong), 30);
  ops::ScoreRows rows;
  rows.shared = random.leaf({5, kWidth});
  rows.linear = 2;
  const ops::Summary from_clean = ops::compress(clean, sequences, rows);
  const ops::Summary from_dirty = ops::compress(dirty, sequences, rows);
  EXPECT_TRUE(identical(from_dirty.c, from_clean.c));
  EXPECT_TRUE(identical(from_dirty.r, from_clean.r));
  EXPECT_TRUE(identical(from_dirty.lse, from_clean.lse));
  const auto gradients =
      torch::autograd::grad({random_projection({from_dirty.c, from_dirty.r}, 1)}, {dirty, rows.shared});
  EXPECT_TRUE(all_finite(gradients[0]));
  EXPECT_TRUE(all_finite(gradients[1]));
  EXPECT_EQ(gradients[0].slice(0, 0, 2).abs().sum().item<double>(), 0);
  EXPECT_EQ(gradients[0].slice(0, 9, 14).abs().sum().item<double>(), 0);
  EXPECT_EQ(gradients[0].slice(0, 20, 30).abs().sum().item<double>(), 0);
  EXPECT_GT(gradients[0].slice(0, 14, 20).abs().sum().item<double>(), 0);
}

TEST(CompressOperator, TakesAnyStrides) {
  Random random(25);
  const PackedBatch batch({7, 0, 12});
  const at::Tensor x = random.normal({kWidth, 2 * batch.rows}).t().slice(0, 0, 2 * batch.rows, 2);
  ops::ScoreRows rows;
  rows.each = random.normal({1, kWidth, 3}).transpose(1, 2).expand({3, 3, kWidth});
  rows.each_bias = random.normal({3, 6}).slice(1, 0, 6, 2);
  rows.shared = random.normal({kWidth, 4}).t();
  rows.shared_bias = random.normal({1}).expand({4});
  ASSERT_FALSE(x.is_contiguous() || rows.each.is_contiguous() || rows.shared.is_contiguous());
  ops::ScoreRows contiguous = rows;
  contiguous.each = rows.each.contiguous();
  contiguous.each_bias = rows.each_bias.contiguous();
  contiguous.shared = rows.shared.contiguous();
  contiguous.shared_bias = rows.shared_bias.contiguous();
  const ops::Summary got = ops::compress(x, batch.sequences, rows);
  const ops::Summary expected = ops::compress(x.contiguous(), batch.sequences, contiguous);
  EXPECT_TRUE(close(got.c, expected.c));
  EXPECT_TRUE(close(got.r, expected.r));
  EXPECT_TRUE(close(finite_part(got.lse), finite_part(expected.lse)));
}

TEST(CompressOperator, AnEmptySequenceSaysNothing) {
  Random random(26);
  const PackedBatch batch({0, 4});
  ops::ScoreRows rows;
  rows.shared = random.normal({3, kWidth});
  rows.linear = 1;
  const ops::Summary got = ops::compress(random.normal({4, kWidth}), batch.sequences, rows);
  EXPECT_EQ(got.c[0].abs().sum().item<double>(), 0);
  EXPECT_EQ(got.r[0].abs().sum().item<double>(), 0);
  EXPECT_TRUE(identical(got.lse[0], at::full({3}, -INFINITY, at::kDouble)));
  EXPECT_TRUE(close(got.r[1].slice(0, 0, 2), at::ones({2}, at::kDouble)));
}

}  // namespace
}  // namespace dba::test

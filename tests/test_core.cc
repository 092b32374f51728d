#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "dba/ops.h"
#include "support/attention_inputs.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "support/core_inputs.h"
#include "support/plain_operators.h"

namespace dba::test {
namespace {

class Core : public ::testing::TestWithParam<LayerCase> {};

TEST_P(Core, EqualsItsDefinitionWithAllGradients) {
  const LayerCase& layer = GetParam();
  const ops::Dropout dropout{layer.dropout, at::tensor({int64_t{3}, int64_t{9}}, at::kLong)};
  for (const CoreKind& kind : core_kinds()) {
    SCOPED_TRACE(kind.name);
    const CoreInputs given(layer, kind, /*batch=*/3, 41);
    const ops::CoreResult got = ops::core(given.c, given.r, given.weights, layer.heads, dropout);
    const ops::CoreResult expected = plain_core(given.c, given.r, given.weights, layer.heads, dropout);
    expect_same_function({{"m", got.m}, {"c", got.c}}, {expected.m, expected.c}, given.named());
  }
}

/// compress, core and restore in a row are the attention operator: one function, one set of gradients.
TEST_P(Core, AttentionIsTheThreeOperatorsInARow) {
  const LayerCase& layer = GetParam();
  for (const CoreKind& kind : core_kinds()) {
    SCOPED_TRACE(kind.name);
    const AttentionInputs given(layer, kind, kLengths, 42);
    const Sequences& sequences = given.batch.sequences;
    const ops::AttentionResult got = given.run();
    const ops::Summary summary = ops::compress(given.x, sequences, given.rows, given.dropout);
    const ops::CoreResult core = ops::core(summary.c, summary.r, given.core.weights, layer.heads, given.dropout);
    const at::Tensor y = ops::restore(given.x, sequences, given.restore_rows, given.restore_bias, core.m,
                                      given.out_bias, layer.heads, layer.linear, given.dropout);
    expect_same_function({{"y", got.y}, {"c", got.c}}, {y, core.c}, given.named());
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, Core, ::testing::ValuesIn(layer_cases()), case_name);

TEST(Fold, MakesScoreRowsOfSlotsAndAProjection) {
  Random random(44);
  constexpr int64_t kHeads = 3, kSlots = 5, kHeadWidth = 2, kTokens = 7;
  const at::Tensor weight = random.leaf({kHeads * kHeadWidth, kTokens}), bias = random.leaf({kHeads * kHeadWidth});
  for (const bool per_sequence : {false, true}) {
    SCOPED_TRACE(per_sequence);
    const at::Tensor z =
        per_sequence ? random.leaf({4, kSlots, kHeads * kHeadWidth}) : random.leaf({kSlots, kHeads * kHeadWidth});
    std::vector<at::Tensor> rows, row_bias;
    for (int64_t h = 0; h < kHeads; ++h) {
      const at::Tensor z_h = z.slice(-1, h * kHeadWidth, (h + 1) * kHeadWidth);
      rows.push_back(0.3 * z_h.matmul(weight.slice(0, h * kHeadWidth, (h + 1) * kHeadWidth)));
      row_bias.push_back(0.3 * z_h.matmul(bias.slice(0, h * kHeadWidth, (h + 1) * kHeadWidth)));
    }
    const auto [got_rows, got_bias] = ops::fold(z, weight, bias, kHeads, 0.3);
    expect_same_function({{"rows", got_rows}, {"bias", got_bias}}, {at::cat(rows, -2), at::cat(row_bias, -1)},
                         {{"z", z}, {"weight", weight}, {"bias", bias}});
    const auto [bare_rows, no_bias] = ops::fold(z, weight, {}, kHeads, 0.3);
    EXPECT_TRUE(identical(bare_rows, got_rows));
    EXPECT_FALSE(no_bias.defined());
  }
}

}  // namespace
}  // namespace dba::test

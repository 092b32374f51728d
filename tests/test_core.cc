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

struct FoldSizes {
  int64_t heads, slots, head_width, d;
};

/// Sizes of 0 too: no slots, heads without width, rows without width.
TEST(Fold, MakesScoreRowsOfSlotsAndAProjection) {
  for (const auto& [heads, slots, head_width, d] :
       {FoldSizes{3, 5, 2, 7}, FoldSizes{3, 0, 2, 7}, FoldSizes{3, 5, 0, 7}, FoldSizes{3, 5, 2, 0}}) {
    SCOPED_TRACE(::testing::Message() << slots << " slots, heads of " << head_width << ", rows of " << d);
    Random random(44);
    const int64_t width = heads * head_width;
    const at::Tensor weight = random.leaf({width, d}), bias = random.leaf({width});
    for (const bool per_sequence : {false, true}) {
      SCOPED_TRACE(per_sequence);
      const at::Tensor z = per_sequence ? random.leaf({4, slots, width}) : random.leaf({slots, width});
      std::vector<at::Tensor> rows, row_bias;
      for (int64_t h = 0; h < heads; ++h) {
        const at::Tensor z_h = z.narrow(-1, h * head_width, head_width);
        rows.push_back(0.3 * z_h.matmul(weight.narrow(0, h * head_width, head_width)));
        row_bias.push_back(0.3 * z_h.matmul(bias.narrow(0, h * head_width, head_width)));
      }
      const auto [got_rows, got_bias] = ops::fold(z, weight, bias, heads, 0.3);
      expect_same_function({{"rows", got_rows}, {"bias", got_bias}}, {at::cat(rows, -2), at::cat(row_bias, -1)},
                           {{"z", z}, {"weight", weight}, {"bias", bias}});
      const auto [bare_rows, no_bias] = ops::fold(z, weight, {}, heads, 0.3);
      EXPECT_TRUE(identical(bare_rows, got_rows));
      EXPECT_FALSE(no_bias.defined());
    }
  }
}

/// Widths that are whole vectors of every instruction set, and widths that are not.
TEST(Fold, StacksTheRowsOfSeveralProjectionsAndATail) {
  for (const auto& [heads, slots, head_width, d] : {FoldSizes{2, 9, 32, 96}, FoldSizes{3, 7, 5, 33}}) {
    SCOPED_TRACE(d);
    Random random(45);
    const int64_t width = heads * head_width;
    for (const bool per_sequence : {false, true}) {
      SCOPED_TRACE(per_sequence);
      const at::Tensor z = per_sequence ? random.leaf({3, slots, width}) : random.leaf({slots, width});
      const std::vector<at::Tensor> weights{random.leaf({width, d}), random.leaf({width, d})};
      const at::Tensor bias = random.leaf({width});  // of the second
      const at::Tensor tail = random.leaf({4, d}), tail_bias = random.leaf({4});
      std::vector<at::Tensor> rows, row_bias;
      for (size_t group = 0; group < weights.size(); ++group) {
        for (int64_t h = 0; h < heads; ++h) {
          const at::Tensor z_h = 0.7 * z.narrow(-1, h * head_width, head_width);
          rows.push_back(z_h.matmul(weights[group].narrow(0, h * head_width, head_width)));
          const at::Tensor bias_h = bias.narrow(0, h * head_width, head_width);
          row_bias.push_back(group == 0 ? at::zeros_like(z_h.select(-1, 0)) : z_h.matmul(bias_h));
        }
      }
      std::vector<Named> inputs{{"z", z}, {"first", weights[0]}, {"second", weights[1]}, {"bias", bias}};
      if (!per_sequence) {
        rows.push_back(tail);
        row_bias.push_back(tail_bias);
        inputs.insert(inputs.end(), {{"tail", tail}, {"tail_bias", tail_bias}});
      }
      const auto [got_rows, got_bias] =
          ops::fold_stack(z, weights, {at::Tensor(), bias}, per_sequence ? at::Tensor() : tail,
                          per_sequence ? at::Tensor() : tail_bias, heads, 0.7);
      expect_same_function({{"rows", got_rows}, {"bias", got_bias}}, {at::cat(rows, -2), at::cat(row_bias, -1)},
                           inputs);
    }
  }
}

}  // namespace
}  // namespace dba::test

#include <gtest/gtest.h>

#include "ops/cpu/attention_pass.h"
#include "ops/cpu/kept_steps.h"
#include "support/attention_inputs.h"
#include "support/comparison.h"

/// Steps of a forward that its backward finds again on a CPU.
namespace dba::test {
namespace {

using ops::cpu::AttentionArguments;
using ops::cpu::StepsOrigin;

const std::vector<int64_t> kLengths = {40, 0, 130, 1, 97, 96, 5, 300};

AttentionArguments arguments_of(const AttentionInputs& inputs) {
  return {inputs.x,
          inputs.batch.sequences,
          inputs.rows,
          inputs.core.weights,
          inputs.restore_rows,
          inputs.restore_bias,
          inputs.out_bias,
          inputs.heads,
          inputs.linear,
          inputs.dropout};
}

StepsOrigin origin_of(const AttentionArguments& arguments) {
  return {arguments, ops::cpu::WorkPlan(arguments.sequences.begin, arguments.sequences.end, 0)};
}

std::vector<at::Tensor> gradients(const AttentionArguments& arguments, const ops::Summary& summary,
                                  const at::Tensor& m) {
  const at::Tensor dy = Random(4).normal({arguments.x.size(0), m.size(2)});
  const auto found = ops::cpu::attention_backward(arguments, {summary, m, dy, {}});
  const auto& [tokens, weights, out_bias] = found.value();
  std::vector<at::Tensor> all = {tokens.dx,
                                 tokens.each,
                                 tokens.each_bias,
                                 tokens.shared,
                                 tokens.shared_bias,
                                 tokens.restore_rows,
                                 tokens.restore_bias,
                                 out_bias,
                                 weights.query_weight,
                                 weights.query_bias,
                                 weights.key_weight,
                                 weights.key_bias,
                                 weights.value_weight,
                                 weights.value_bias,
                                 weights.width,
                                 weights.out_weight};
  std::erase_if(all, [](const at::Tensor& tensor) { return !tensor.defined(); });
  return all;
}

TEST(CpuKeptSteps, AreTheNumbersThatBackwardWouldCompute) {
  const at::NoGradGuard no_grad;
  for (const CoreKind& kind : core_kinds())
    for (const LayerCase& layer : {LayerCase{2, 16, false, false, true, 0.0}, LayerCase{4, 5, true, true, true, 0.25},
                                   LayerCase{8, 16, true, false, false, 0.0}}) {
      SCOPED_TRACE(kind.name + " " + layer.name());
      const AttentionInputs inputs(layer, kind, kLengths, 21);
      const AttentionArguments arguments = arguments_of(inputs);
      const auto out = ops::cpu::attention(arguments, /*keep=*/true);
      ASSERT_NE(ops::cpu::steps_with(out->summary.c, origin_of(arguments)), nullptr);
      // A copy of the summary carries nothing.
      const ops::Summary copy{out->summary.c.clone(), out->summary.r, out->summary.lse};
      ASSERT_EQ(ops::cpu::steps_with(copy.c, origin_of(arguments)), nullptr);
      const auto found = gradients(arguments, out->summary, out->m), computed = gradients(arguments, copy, out->m);
      ASSERT_EQ(found.size(), computed.size());
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(identical(found[i], computed[i])) << i;
    }
}

TEST(CpuKeptSteps, AreNotTakenForThoseOfOtherTokensOrWeights) {
  const at::NoGradGuard no_grad;
  const auto inputs = [] { return AttentionInputs({2, 16, true, false, true, 0.0}, core_kinds()[0], kLengths, 22); };
  const auto changes = std::vector<std::pair<std::string, std::function<at::Tensor(AttentionInputs&)>>>{
      {"x", [](AttentionInputs& given) { return given.x; }},
      {"each", [](AttentionInputs& given) { return given.rows.each; }},
      {"shared", [](AttentionInputs& given) { return given.rows.shared; }},
      {"restore_rows", [](AttentionInputs& given) { return given.restore_rows; }},
      {"restore_bias", [](AttentionInputs& given) { return given.restore_bias; }},
      {"key_weight", [](AttentionInputs& given) { return given.core.weights.key_weight; }}};
  for (const auto& [name, tensor] : changes) {
    SCOPED_TRACE(name);
    AttentionInputs given = inputs();
    const AttentionArguments arguments = arguments_of(given);
    const auto out = ops::cpu::attention(arguments, /*keep=*/true);
    ASSERT_NE(ops::cpu::steps_with(out->summary.c, origin_of(arguments)), nullptr);
    tensor(given).mul_(2);
    EXPECT_EQ(ops::cpu::steps_with(out->summary.c, origin_of(arguments)), nullptr);
  }
  const AttentionInputs given = inputs();
  AttentionArguments arguments = arguments_of(given);
  const auto out = ops::cpu::attention(arguments, /*keep=*/true);
  arguments.dropout.p = 0.5;
  EXPECT_EQ(ops::cpu::steps_with(out->summary.c, origin_of(arguments)), nullptr);
}

TEST(CpuKeptSteps, AreLeftOutWhereTheyWouldBeLarge) {
  const at::NoGradGuard no_grad;
  // 4 × 64 slots: 1,024 columns of float64.
  const AttentionInputs inputs({4, 64, false, false, true, 0.0}, core_kinds()[0], std::vector<int64_t>(22, 100), 23);
  const AttentionArguments arguments = arguments_of(inputs);
  const auto out = ops::cpu::attention(arguments, /*keep=*/true);
  EXPECT_EQ(ops::cpu::steps_with(out->summary.c, origin_of(arguments)), nullptr);
}

}  // namespace
}  // namespace dba::test

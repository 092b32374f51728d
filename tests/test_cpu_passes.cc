#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "dba/backend.h"
#include "dba/ops.h"
#include "ops/cpu/kernels.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "support/layer_operands.h"

/// The CPU passes against the reference: every instruction set that this processor has, every element type.
namespace dba::test {
namespace {

using ops::cpu::InstructionSet;

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets;
  for (const InstructionSet set : {InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512})
    if (set <= ops::cpu::best_instruction_set())
      sets.push_back(set);
  return sets;
}

class InstructionSetGuard {
 public:
  explicit InstructionSetGuard(InstructionSet set) : previous_(ops::cpu::instruction_set()) {
    ops::cpu::set_instruction_set(set);
  }
  ~InstructionSetGuard() {
    ops::cpu::set_instruction_set(previous_);
  }

 private:
  InstructionSet previous_;
};

/// In double the passes equal the reference. In any other type their error against the reference in double is at most
/// twice that of the reference in the same type, over some draws together because where a softmax is steep one draw's
/// errors are a matter of luck. The floor is a few roundings of float32: of the tensor itself, and of the largest
/// gradient for those that vanish in exact arithmetic and keep the roundings of what cancels.
void expect_as_exact_as_the_reference(const std::vector<LayerOperands>& draws, at::ScalarType dtype,
                                      const std::vector<InstructionSet>& sets) {
  struct Errors {
    std::string name;
    double reference = 0, norm = 0;  // squares
    std::vector<double> fused;
  };
  std::vector<Errors> errors;
  double largest = 0;
  for (const LayerOperands& given : draws) {
    const auto truth = evaluate(given.in(at::kDouble, dtype), Backend::reference);
    const auto reference = dtype == at::kDouble ? truth : evaluate(given.in(dtype, dtype), Backend::reference);
    errors.resize(truth.size());
    const auto square = [](const at::Tensor& t) { return t.to(at::kDouble).square().sum().item<double>(); };
    for (size_t i = 0; i < truth.size(); ++i) {
      errors[i].name = truth[i].name;
      errors[i].fused.resize(sets.size());
      errors[i].reference += square(reference[i].tensor - truth[i].tensor);
      errors[i].norm += square(truth[i].tensor);
      largest = std::max(largest, errors[i].norm);
    }
    for (size_t set = 0; set < sets.size(); ++set) {
      const InstructionSetGuard guard(sets[set]);
      const auto fused = evaluate(given.in(dtype, dtype), Backend::fused);
      for (size_t i = 0; i < truth.size(); ++i) {
        EXPECT_EQ(fused[i].tensor.scalar_type(), reference[i].tensor.scalar_type()) << truth[i].name;
        EXPECT_EQ(fused[i].tensor.sizes(), truth[i].tensor.sizes()) << truth[i].name;
        errors[i].fused[set] += square(fused[i].tensor - truth[i].tensor);
      }
    }
  }
  for (const Errors& error : errors) {
    const double scale = std::sqrt(std::max(error.norm, 1e-3 * largest));
    const double allowed =
        dtype == at::kDouble ? kExact * scale : 2 * std::sqrt(error.reference) + 4 * std::ldexp(1.0, -23) * scale;
    for (size_t set = 0; set < sets.size(); ++set)
      EXPECT_LE(std::sqrt(error.fused[set]), allowed)
          << error.name << " in " << c10::toString(dtype) << ", instruction set " << static_cast<int>(sets[set]);
  }
}

class CpuPasses : public ::testing::TestWithParam<LayerCase> {};

TEST_P(CpuPasses, AreAsExactAsTheReference) {
  std::vector<LayerOperands> draws;
  for (const uint64_t seed : {51, 52, 53})
    draws.push_back(layer_of(GetParam(), core_kinds()[0], kLengths, seed));
  expect_as_exact_as_the_reference(draws, at::kFloat, instruction_sets());
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
    expect_as_exact_as_the_reference(draws, dtype, {ops::cpu::best_instruction_set()});
}

TEST_P(CpuPasses, AreTheReferenceInDoubleForEveryCore) {
  for (const CoreKind& kind : core_kinds()) {
    SCOPED_TRACE(kind.name);
    expect_as_exact_as_the_reference({layer_of(GetParam(), kind, {17, 0, 1, 100}, 54)}, at::kDouble,
                                     instruction_sets());
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, CpuPasses, ::testing::ValuesIn(layer_cases()), case_name);

TEST(CpuPassesOfOddSizes, AreAsExactAsTheReference) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16})
    expect_as_exact_as_the_reference({layer_of_odd_sizes()}, dtype, instruction_sets());
}

TEST(CpuPassesOfStackedSequences, AreAsExactAsTheReference) {
  LayerOperands dropped = layer_of_odd_sizes(kUnsplitLengths, /*slots=*/7);
  LayerOperands kept = dropped;
  kept.dropout = {};
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    expect_as_exact_as_the_reference({dropped}, dtype, instruction_sets());
    expect_as_exact_as_the_reference({kept}, dtype, instruction_sets());
  }
}

/// Without gradients the summaries are not kept; the layer's arithmetic is the same.
TEST(CpuPassesOfStackedSequences, GiveTheSameBitsWithAndWithoutGradients) {
  for (const auto& lengths : {kUnsplitLengths, kOddLengths}) {
    const LayerOperands layer = layer_of_odd_sizes(lengths, /*slots=*/7).in(at::kFloat, at::kFloat);
    const BackendGuard guard(Backend::fused);
    const auto run = [&] {
      return ops::attention(layer.x, layer.sequences, layer.rows, layer.weights, layer.restore_rows, layer.restore_bias,
                            layer.out_bias, layer.heads, layer.linear, layer.dropout);
    };
    const auto expected = run();
    const torch::NoGradGuard no_grad;
    const auto actual = run();
    EXPECT_TRUE(identical(actual.y, expected.y.detach()));
    EXPECT_TRUE(identical(actual.c, expected.c.detach()));
    EXPECT_FALSE(actual.y.requires_grad());
  }
}

/// Tokens in quarters and rows in multiples of 2560: every score is exact in float32, and reaches ±1e4.
TEST(CpuPassesOfLargeScores, AreAsExactAsTheReference) {
  LayerOperands layer = layer_of({2, 16, true, false, false, 0.0}, core_kinds()[0], {1, 37, 0, 100}, 53);
  layer.x = (layer.x.detach() * 2).round().clamp(-2, 2) / 4;
  for (at::Tensor* rows : {&layer.rows.each, &layer.rows.shared, &layer.restore_rows})
    *rows = (rows->detach() * 6).round().clamp(-4, 4) * 2560;
  ASSERT_GT(layer.x.matmul(layer.restore_rows.t()).abs().max().item<double>(), 1e4);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16})
    expect_as_exact_as_the_reference({layer}, dtype, instruction_sets());
}

}  // namespace
}  // namespace dba::test

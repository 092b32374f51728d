#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "dba/backend.h"
#include "dba/ops.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/work_plan.h"
#include "support/attention_inputs.h"
#include "support/cases.h"
#include "support/comparison.h"

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

class ThreadsGuard {
 public:
  explicit ThreadsGuard(int threads) : previous_(at::get_num_threads()) {
    at::set_num_threads(threads);
  }
  ~ThreadsGuard() {
    at::set_num_threads(previous_);
  }

 private:
  int previous_;
};

/// Everything that a layer's operators take.
struct Layer {
  Sequences sequences;
  at::Tensor x, restore_rows, restore_bias, out_bias;
  at::Tensor m;  ///< for restore on its own
  ops::ScoreRows rows;
  ops::CoreWeights weights;
  int64_t heads = 1;
  bool linear = false;
  ops::Dropout dropout;

  std::vector<std::pair<std::string, at::Tensor*>> tensors() {
    std::vector<std::pair<std::string, at::Tensor*>> all = {{"x", &x},
                                                            {"restore_rows", &restore_rows},
                                                            {"restore_bias", &restore_bias},
                                                            {"out_bias", &out_bias},
                                                            {"m", &m},
                                                            {"each", &rows.each},
                                                            {"each_bias", &rows.each_bias},
                                                            {"shared", &rows.shared},
                                                            {"shared_bias", &rows.shared_bias},
                                                            {"query_weight", &weights.query_weight},
                                                            {"query_bias", &weights.query_bias},
                                                            {"key_weight", &weights.key_weight},
                                                            {"key_bias", &weights.key_bias},
                                                            {"value_weight", &weights.value_weight},
                                                            {"value_bias", &weights.value_bias},
                                                            {"width", &weights.width},
                                                            {"compress_weight", &weights.compress_weight},
                                                            {"compress_bias", &weights.compress_bias},
                                                            {"norm_weight", &weights.norm_weight},
                                                            {"norm_bias", &weights.norm_bias},
                                                            {"out_weight", &weights.out_weight},
                                                            {"other", &weights.other}};
    std::erase_if(all, [](const auto& entry) { return !entry.second->defined(); });
    return all;
  }
  /// The same numbers rounded to `narrow`, as leaves of `dtype`.
  Layer in(at::ScalarType dtype, at::ScalarType narrow) const {
    Layer result = *this;
    for (auto& [name, tensor] : result.tensors())
      *tensor = tensor->detach().to(narrow).to(dtype, false, true).requires_grad_(true);
    return result;
  }
};

Layer layer_of(const LayerCase& layer, const CoreKind& kind, const std::vector<int64_t>& lengths, uint64_t seed) {
  const AttentionInputs given(layer, kind, lengths, seed);
  Layer result;
  result.sequences = given.batch.sequences;
  result.x = given.x;
  result.restore_rows = given.restore_rows;
  result.restore_bias = given.restore_bias;
  result.out_bias = given.out_bias;
  result.rows = given.rows;
  result.weights = given.core.weights;
  result.heads = given.heads;
  result.linear = given.linear;
  result.dropout = given.dropout;
  result.m = Random(seed + 7).normal({given.batch.count(), layer.heads * layer.d_p, CoreInputs::kOut});
  return result;
}

/// Widths that fill no vector and no panel, more rows than a panel holds, biases of every kind, rows of each sequence
/// in both operators; tokens enough for several units and for a sequence that is split.
const std::vector<int64_t> kOddLengths = {0, 700, 3, 0, 1700, 97, 500, 1};
/// No sequence is split: the whole layer goes stack by stack. Several make a stack, gaps among them and several stacks
/// in a unit.
const std::vector<int64_t> kUnsplitLengths = {40, 41, 0, 5, 500, 1, 2, 3, 4, 1100, 0, 33, 97, 96, 600, 0};

Layer layer_of_odd_sizes(const std::vector<int64_t>& lengths = kOddLengths, int64_t slots = 23) {
  constexpr int64_t kWidth = 83, kOut = 71, kHeads = 3;
  const int64_t each = 3 * slots + 1;
  Random random(61);
  const PackedBatch batch(lengths);
  Layer layer;
  layer.sequences = batch.sequences;
  layer.heads = kHeads;
  layer.dropout = {0.25, at::tensor({int64_t{5}, int64_t{1} << 40}, at::kLong)};
  layer.x = random.normal({batch.rows, kWidth});
  layer.restore_rows = random.normal({batch.count(), kHeads * slots, kWidth}, 0.2);
  layer.restore_bias = random.normal({batch.count(), kHeads * slots}, 0.5);
  layer.out_bias = random.normal({kOut});
  layer.m = random.normal({batch.count(), kHeads * slots, kOut});
  layer.rows.each = random.normal({batch.count(), each, kWidth}, 0.2);
  layer.rows.each_bias = random.normal({batch.count(), each}, 0.5);
  layer.rows.shared = random.normal({3 * kHeads * slots - each, kWidth}, 0.2);
  layer.rows.shared_bias = random.normal({3 * kHeads * slots - each}, 0.5);
  layer.rows.linear = kHeads * slots;
  ops::CoreWeights& w = layer.weights;
  for (at::Tensor* weight : {&w.query_weight, &w.key_weight, &w.value_weight})
    *weight = random.normal({kHeads * 9, kWidth}, 0.1);
  for (at::Tensor* bias : {&w.query_bias, &w.key_bias, &w.value_bias})
    *bias = random.normal({kHeads * 9}, 0.5);
  w.width = random.normal({kHeads, 9, 5}, 0.3);
  w.out_weight = random.normal({kOut, kHeads * 9}, 0.2);
  return layer;
}

/// Values of compress, restore and the whole layer, and the gradients of a random projection of them all.
std::vector<Named> evaluate(Layer layer, Backend backend) {
  const BackendGuard guard(backend);
  const ops::Summary summary = ops::compress(layer.x, layer.sequences, layer.rows, layer.dropout);
  const at::Tensor restored = ops::restore(layer.x, layer.sequences, layer.restore_rows, layer.restore_bias, layer.m,
                                           layer.out_bias, layer.heads, layer.linear, layer.dropout);
  const ops::AttentionResult whole =
      ops::attention(layer.x, layer.sequences, layer.rows, layer.weights, layer.restore_rows, layer.restore_bias,
                     layer.out_bias, layer.heads, layer.linear, layer.dropout);
  // An empty sequence has −inf here, whose product with anything but a gradient is useless.
  const at::Tensor lse = at::where(summary.lse.isinf(), at::zeros_like(summary.lse), summary.lse);
  std::vector<Named> results = {{"c", summary.c},      {"r", summary.r}, {"lse", lse},
                                {"restore", restored}, {"y", whole.y},   {"compressed", whole.c}};
  std::vector<at::Tensor> outputs;
  for (const Named& result : results)
    outputs.push_back(result.tensor);
  std::vector<at::Tensor> leaves;
  for (const auto& [name, tensor] : layer.tensors())
    leaves.push_back(*tensor);
  const auto gradients = torch::autograd::grad({random_projection(outputs, 9)}, leaves);
  for (size_t i = 0; i < leaves.size(); ++i)
    results.push_back({"gradient of " + layer.tensors()[i].first, gradients[i]});
  for (Named& result : results)
    result.tensor = result.tensor.detach();
  return results;
}

/// In double the passes equal the reference. In any other type their error against the reference in double is at most
/// twice that of the reference in the same type, over some draws together because where a softmax is steep one draw's
/// errors are a matter of luck. The floor is a few roundings of float32: of the tensor itself, and of the largest
/// gradient for those that vanish in exact arithmetic and keep the roundings of what cancels.
void expect_as_exact_as_the_reference(const std::vector<Layer>& draws, at::ScalarType dtype,
                                      const std::vector<InstructionSet>& sets) {
  struct Errors {
    std::string name;
    double reference = 0, norm = 0;  // squares
    std::vector<double> fused;
  };
  std::vector<Errors> errors;
  double largest = 0;
  for (const Layer& given : draws) {
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

void expect_identical(const std::vector<Named>& actual, const std::vector<Named>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(identical(actual[i].tensor, expected[i].tensor)) << actual[i].name;
}

class CpuPasses : public ::testing::TestWithParam<LayerCase> {};

TEST_P(CpuPasses, AreAsExactAsTheReference) {
  std::vector<Layer> draws;
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
  Layer dropped = layer_of_odd_sizes(kUnsplitLengths, /*slots=*/7);
  Layer kept = dropped;
  kept.dropout = {};
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    expect_as_exact_as_the_reference({dropped}, dtype, instruction_sets());
    expect_as_exact_as_the_reference({kept}, dtype, instruction_sets());
  }
}

/// Without gradients the summaries are not kept; the layer's arithmetic is the same.
TEST(CpuPassesOfStackedSequences, GiveTheSameBitsWithAndWithoutGradients) {
  for (const auto& lengths : {kUnsplitLengths, kOddLengths}) {
    const Layer layer = layer_of_odd_sizes(lengths, /*slots=*/7).in(at::kFloat, at::kFloat);
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
  Layer layer = layer_of({2, 16, true, false, false, 0.0}, core_kinds()[0], {1, 37, 0, 100}, 53);
  layer.x = (layer.x.detach() * 2).round().clamp(-2, 2) / 4;
  for (at::Tensor* rows : {&layer.rows.each, &layer.rows.shared, &layer.restore_rows})
    *rows = (rows->detach() * 6).round().clamp(-4, 4) * 2560;
  ASSERT_GT(layer.x.matmul(layer.restore_rows.t()).abs().max().item<double>(), 1e4);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16})
    expect_as_exact_as_the_reference({layer}, dtype, instruction_sets());
}

TEST(CpuPassesAndThreads, GiveTheSameBitsForAnyNumberOfThreads) {
  for (const auto& lengths : {kOddLengths, kUnsplitLengths}) {
    const Layer layer = layer_of_odd_sizes(lengths).in(at::kFloat, at::kFloat);
    const auto expected = evaluate(layer, Backend::fused);
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE(threads);
      const ThreadsGuard guard(threads);
      for (int repetition = 0; repetition < 5; ++repetition)
        expect_identical(evaluate(layer, Backend::fused), expected);
    }
  }
}

TEST(CpuPassesAndMemory, DoNotDependOnWhatScratchHolds) {
  for (const auto& lengths : {kOddLengths, kUnsplitLengths}) {
    const Layer layer = layer_of_odd_sizes(lengths).in(at::kFloat, at::kFloat);
    const auto expected = evaluate(layer, Backend::fused);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    const auto poisoned = evaluate(layer, Backend::fused);
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
    expect_identical(poisoned, expected);
  }
}

TEST(CpuPassesAndMemory, TakeTokensAndGradientsWithAnyStrides) {
  const Layer layer = layer_of_odd_sizes().in(at::kFloat, at::kFloat);
  const auto gradient_of_sum = [&](const at::Tensor& x) {
    const BackendGuard guard(Backend::fused);
    const at::Tensor leaf = x.detach().requires_grad_(true);
    const auto result = ops::attention(leaf, layer.sequences, layer.rows, layer.weights, layer.restore_rows,
                                       layer.restore_bias, layer.out_bias, layer.heads, layer.linear, layer.dropout);
    return std::vector<Named>{{"y", result.y.detach()},
                              {"dx", torch::autograd::grad({result.y.sum()}, {leaf})[0].contiguous()}};
  };
  const auto expected = gradient_of_sum(layer.x);
  const at::Tensor by_columns = layer.x.detach().t().contiguous().t();
  const at::Tensor inside_wider = at::constant_pad_nd(layer.x.detach(), {5, 3}, NAN).slice(1, 5, 5 + layer.x.size(1));
  ASSERT_EQ(by_columns.stride(0), 1);
  ASSERT_FALSE(inside_wider.is_contiguous());
  expect_identical(gradient_of_sum(by_columns), expected);
  expect_identical(gradient_of_sum(inside_wider), expected);
}

TEST(CpuPassesAndMemory, NeitherReadNorWriteRowsOfNobody) {
  for (const bool half : {false, true}) {
    SCOPED_TRACE(half ? "bfloat16" : "float32");
    const at::ScalarType dtype = half ? at::kBFloat16 : at::kFloat;
    const PackedBatch batch({5, 0, 130, 1});
    const Layer packed =
        layer_of({2, 16, true, false, true, 0.25}, core_kinds()[0], batch.lengths, 54).in(dtype, dtype);
    constexpr int64_t kPlace = 150;  // rows that each sequence has, from its third on
    Layer padded = packed;
    const auto begin = at::arange(batch.count(), at::kLong) * kPlace + 3;
    padded.sequences = Sequences::ranges(begin, begin + at::tensor(batch.lengths, at::kLong), batch.count() * kPlace);
    const at::Tensor real = padded.sequences.row_mask();
    const auto scattered = [&](const at::Tensor& rows) {
      at::Tensor all = at::full({batch.count() * kPlace, rows.size(1)}, NAN, rows.options());
      all.index_put_({real}, rows.detach());
      return all;
    };
    padded.x = scattered(packed.x).requires_grad_(true);
    const auto run = [&](const Layer& layer, const at::Tensor& gradient) {
      const BackendGuard guard(Backend::fused);
      const auto result = ops::attention(layer.x, layer.sequences, layer.rows, layer.weights, layer.restore_rows,
                                         layer.restore_bias, layer.out_bias, layer.heads, layer.linear, layer.dropout);
      auto outputs = torch::autograd::grad(
          {result.y},
          {layer.x, layer.rows.each, layer.rows.shared, layer.restore_rows, layer.out_bias, layer.weights.query_weight},
          {gradient});
      outputs.push_back(result.y.detach());
      return outputs;
    };
    const at::Tensor gradient = Random(3).normal({batch.rows, CoreInputs::kOut}).to(dtype);
    const auto expected = run(packed, gradient);
    auto actual = run(padded, scattered(gradient));
    for (const size_t i : {size_t{0}, actual.size() - 1}) {
      EXPECT_TRUE(
          identical(actual[i].index({real.logical_not()}), at::zeros_like(actual[i].index({real.logical_not()}))));
      actual[i] = actual[i].index({real});
    }
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(identical(actual[i], expected[i])) << i;
  }
}

/// What the operators give to rows and to sequences, and the gradients of what each sequence has of its own. `name`: of
/// which operand or gradient of a result one entry, of the spoiled sequence, becomes `value`.
std::vector<Named> evaluate_spoiled(Layer layer, int64_t spoiled, const std::string& name, double value) {
  const BackendGuard guard(Backend::fused);
  const auto spoil = [&](const std::string& of, const at::Tensor& tensor) {
    if (of == name) {
      const torch::NoGradGuard no_grad;
      const bool by_rows = tensor.size(0) == layer.sequences.rows;
      tensor[by_rows ? layer.sequences.begin[spoiled].item<int64_t>() + 2 : spoiled].view(-1)[1].fill_(value);
    }
  };
  for (auto& [of, tensor] : layer.tensors())
    spoil(of, *tensor);
  const ops::Summary summary = ops::compress(layer.x, layer.sequences, layer.rows, layer.dropout);
  const at::Tensor restored = ops::restore(layer.x, layer.sequences, layer.restore_rows, layer.restore_bias, layer.m,
                                           layer.out_bias, layer.heads, layer.linear, layer.dropout);
  const ops::AttentionResult whole =
      ops::attention(layer.x, layer.sequences, layer.rows, layer.weights, layer.restore_rows, layer.restore_bias,
                     layer.out_bias, layer.heads, layer.linear, layer.dropout);
  std::vector<Named> results = {{"c", summary.c},       {"r", summary.r}, {"lse", finite_part(summary.lse)},
                                {"restored", restored}, {"y", whole.y},   {"compressed", whole.c}};
  std::vector<at::Tensor> outputs, directions;
  for (const Named& result : results) {
    outputs.push_back(result.tensor);
    directions.push_back(Random(9).normal(result.tensor.sizes()).to(result.tensor.scalar_type()));
    spoil("gradient of " + result.name, directions.back());
  }
  const std::vector<at::Tensor> own = {
      layer.x, layer.m, layer.rows.each, layer.rows.each_bias, layer.restore_rows, layer.restore_bias};
  for (const at::Tensor& gradient : torch::autograd::grad(outputs, own, directions))
    results.push_back({"gradient " + std::to_string(results.size()), gradient});
  for (Named& result : results)
    result.tensor = result.tensor.detach();
  return results;
}

TEST(CpuPassesOfNeighbours, KeepNaNAndInfinityToTheirSequence) {
  constexpr int64_t kSpoiled = 4;  // of 500 tokens in a stack with others, or of 1,700 in parts
  for (const auto& lengths : {kUnsplitLengths, kOddLengths}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const PackedBatch batch(lengths);
      Layer layer = layer_of_odd_sizes(lengths, /*slots=*/7);
      if (dtype == at::kFloat)
        layer.dropout = {};
      const auto evaluated = [&](const std::string& name, double value) {
        return evaluate_spoiled(layer.in(dtype, dtype), kSpoiled, name, value);
      };
      const auto expected = evaluated("", 0);
      for (const char* name :
           {"x", "m", "each", "each_bias", "restore_rows", "restore_bias", "gradient of c", "gradient of r",
            "gradient of lse", "gradient of restored", "gradient of y", "gradient of compressed"}) {
        for (const double value : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
          SCOPED_TRACE(std::string(c10::toString(dtype)) + ", " + std::to_string(value) + " in " + name);
          const auto actual = evaluated(name, value);
          bool felt = false;
          for (size_t i = 0; i < actual.size(); ++i) {
            const bool by_rows = actual[i].tensor.size(0) == batch.rows;
            const int64_t first = by_rows ? batch.begin[kSpoiled] : kSpoiled;
            const int64_t after = by_rows ? batch.end[kSpoiled] : kSpoiled + 1;
            const auto others = [&](const at::Tensor& t) { return at::cat({t.slice(0, 0, first), t.slice(0, after)}); };
            felt = felt || !all_finite(actual[i].tensor.slice(0, first, after));
            EXPECT_TRUE(all_finite(expected[i].tensor)) << expected[i].name;
            EXPECT_TRUE(identical(others(actual[i].tensor), others(expected[i].tensor))) << actual[i].name;
          }
          EXPECT_TRUE(felt) << "it vanished";
        }
      }
    }
  }
}

TEST(CpuWorkPlan, CoversEveryTokenOnceAndKeepsFewSums) {
  constexpr int64_t kSums = 256 * 256;
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{1 << 20}, {100000, 0, 3, 70000, 12, 1 << 18}, std::vector<int64_t>(5000, 7)}) {
    const PackedBatch batch(lengths);
    const ops::cpu::WorkPlan plan(batch.sequences.begin, batch.sequences.end, kSums);
    int64_t next = 0, parts = 0;
    for (const ops::cpu::Segment& segment : plan.segments) {
      EXPECT_EQ(segment.first_row, next);
      EXPECT_EQ(segment.first_row - segment.first_token, batch.begin[static_cast<size_t>(segment.sequence)]);
      EXPECT_EQ(segment.first_token % ops::cpu::kTile, 0);
      EXPECT_EQ(segment.part >= 0, segment.tokens < segment.length);
      parts += segment.part >= 0 ? 1 : 0;
      next += segment.tokens;
    }
    EXPECT_EQ(next, batch.rows);
    EXPECT_EQ(parts, plan.parts);
    EXPECT_EQ(plan.first_segment.back(), static_cast<int64_t>(plan.segments.size()));
    EXPECT_LE((plan.units() + plan.parts) * kSums * 4, 48 << 20) << "bytes of float32 sums";
  }
}

/// Tokens of the units that one of two threads gets if neither is held up: about the first half.
int64_t tokens_of_first_thread(const ops::cpu::WorkPlan& plan) {
  int64_t tokens = 0;
  const auto end = plan.first_segment[static_cast<size_t>((plan.units() + 1) / 2)];
  for (int64_t i = 0; i < end; ++i) {
    tokens += plan.segments[static_cast<size_t>(i)].tokens;
  }
  return tokens;
}

TEST(CpuWorkPlan, FindsTheSameWorkForTwoThreads) {
  for (const auto& [count, length] : {std::pair<size_t, int64_t>{60, 40},
                                      {12, 160},
                                      {8, 256},
                                      {3, 700},
                                      {1, 1000},
                                      {2, 1000},
                                      {1, 2200},
                                      {64, 128},
                                      {8, 1024},
                                      {2, 4096},
                                      {1, 16384}}) {
    SCOPED_TRACE(std::to_string(count) + " sequences of " + std::to_string(length));
    const PackedBatch batch(std::vector<int64_t>(count, length));
    const ops::cpu::WorkPlan plan(batch.sequences.begin, batch.sequences.end, 0);
    EXPECT_GE(plan.units(), 2);
    EXPECT_NEAR(static_cast<double>(tokens_of_first_thread(plan)) / static_cast<double>(batch.rows), 0.5, 0.06);
  }
}

}  // namespace
}  // namespace dba::test

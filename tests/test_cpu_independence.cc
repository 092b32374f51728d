#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "dba/backend.h"
#include "dba/ops.h"
#include "support/comparison.h"
#include "support/layer_operands.h"

/// What the bits of the CPU passes do not depend on: threads, scratch memory, strides, rows of nobody, neighbours.
namespace dba::test {
namespace {

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

TEST(CpuPassesAndThreads, GiveTheSameBitsForAnyNumberOfThreads) {
  for (const auto& lengths : {kOddLengths, kUnsplitLengths}) {
    const LayerOperands layer = layer_of_odd_sizes(lengths).in(at::kFloat, at::kFloat);
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
    const LayerOperands layer = layer_of_odd_sizes(lengths).in(at::kFloat, at::kFloat);
    const auto expected = evaluate(layer, Backend::fused);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    const auto poisoned = evaluate(layer, Backend::fused);
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
    expect_identical(poisoned, expected);
  }
}

TEST(CpuPassesAndMemory, TakeTokensAndGradientsWithAnyStrides) {
  const LayerOperands layer = layer_of_odd_sizes().in(at::kFloat, at::kFloat);
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
    const LayerOperands packed =
        layer_of({2, 16, true, false, true, 0.25}, core_kinds()[0], batch.lengths, 54).in(dtype, dtype);
    constexpr int64_t kPlace = 150;  // rows that each sequence has, from its third on
    LayerOperands padded = packed;
    const auto begin = at::arange(batch.count(), at::kLong) * kPlace + 3;
    padded.sequences = Sequences::ranges(begin, begin + at::tensor(batch.lengths, at::kLong), batch.count() * kPlace);
    const at::Tensor real = padded.sequences.row_mask();
    const auto scattered = [&](const at::Tensor& rows) {
      at::Tensor all = at::full({batch.count() * kPlace, rows.size(1)}, NAN, rows.options());
      all.index_put_({real}, rows.detach());
      return all;
    };
    padded.x = scattered(packed.x).requires_grad_(true);
    const auto run = [&](const LayerOperands& layer, const at::Tensor& gradient) {
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
std::vector<Named> evaluate_spoiled(LayerOperands layer, int64_t spoiled, const std::string& name, double value) {
  const auto spoil = [&](const std::string& of, const at::Tensor& tensor) {
    if (of == name) {
      const torch::NoGradGuard no_grad;
      const bool by_rows = tensor.size(0) == layer.sequences.rows;
      tensor[by_rows ? layer.sequences.begin[spoiled].item<int64_t>() + 2 : spoiled].view(-1)[1].fill_(value);
    }
  };
  for (auto& [of, tensor] : layer.tensors())
    spoil(of, *tensor);
  const std::vector<Named> own = {{"x", layer.x},
                                  {"m", layer.m},
                                  {"each", layer.rows.each},
                                  {"each_bias", layer.rows.each_bias},
                                  {"restore_rows", layer.restore_rows},
                                  {"restore_bias", layer.restore_bias}};
  return results_of(layer, Backend::fused, own,
                    [&](const std::string& of, const at::Tensor& gradient) { spoil("gradient of " + of, gradient); });
}

TEST(CpuPassesOfNeighbours, KeepNaNAndInfinityToTheirSequence) {
  constexpr int64_t kSpoiled = 4;  // of 500 tokens in a stack with others, or of 1,700 in parts
  for (const auto& lengths : {kUnsplitLengths, kOddLengths}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const PackedBatch batch(lengths);
      LayerOperands layer = layer_of_odd_sizes(lengths, /*slots=*/7);
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

}  // namespace
}  // namespace dba::test

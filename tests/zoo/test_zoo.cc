#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <limits>

#include "dba/zoo.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "support/layouts.h"
#include "zoo/agreement.h"
#include "zoo/buckets.h"
#include "zoo/cases.h"
#include "zoo/dense.h"
#include "zoo/sums_beyond.h"

namespace dba::test {
namespace {

class ZooValues : public ::testing::TestWithParam<ZooCase> {
 protected:
  at::Tensor dense(const torch::nn::Module& module, const PackedBatch& batch, const at::Tensor& x) const {
    const DenseLayer layer{module, GetParam().complete(), GetParam().heads};
    std::vector<at::Tensor> y;
    for (int64_t b = 0; b < batch.count(); ++b) {
      const at::Tensor rows = batch.rows_of(x, b);
      y.push_back(rows.size(0) == 0 ? rows : dense_attention(GetParam().member, layer, rows, rows));
    }
    return at::cat(y);
  }
};

Attention& attention_of(const std::shared_ptr<torch::nn::Module>& module) {
  return dynamic_cast<Attention&>(*module);
}

TEST_P(ZooValues, EqualTheFormulaOnMixedLengths) {
  Random random(7);
  const auto module = GetParam().make(random);
  const PackedBatch batch(kZooLengths);
  const at::Tensor x = random.leaf({batch.rows, GetParam().d});
  const at::Tensor y = attention_of(module).forward(x, batch.sequences).y;
  expect_same_function({{"y", y}}, {dense(*module, batch, x)}, with_parameters({{"x", x}}, *module));
}

/// All in one layout, as on a GPU: packed batches of such lengths are divided.
TEST_P(ZooValues, EqualTheFormulaOnMixedLengthsInOneLayout) {
  Random random(17);
  const auto module = GetParam().make(random);
  const PackedBatch batch(kZooLengths);
  const at::Tensor x = random.leaf({batch.rows, GetParam().d});
  const auto sequences = padded_sequences(batch, 257);
  const at::Tensor y = attention_of(module).forward(padded(x, batch, 257, kNaN), sequences).y;
  expect_same_function({{"y", unpadded(y, batch)}}, {dense(*module, batch, x)}, with_parameters({{"x", x}}, *module));
}

TEST_P(ZooValues, EqualTheFormulaInAPlainBatch) {
  Random random(8);
  const auto module = GetParam().make(random);
  for (const int64_t n : {1, 65}) {
    SCOPED_TRACE(n);
    const PackedBatch batch({n, n, n});
    const at::Tensor x = random.leaf({3, n, GetParam().d});
    const at::Tensor y = attention_of(module).forward(x).y;
    expect_same_function({{"y", y}}, {dense(*module, batch, x.view({-1, GetParam().d})).view_as(x)},
                         with_parameters({{"x", x}}, *module));
  }
}

TEST_P(ZooValues, SinglePrecisionIsNearDouble) {
  // Other kernels than in double, where PyTorch has some that take masks. A rounded token may fall into another bucket.
  if (GetParam().member == "reformer" || GetParam().member == "yoso")
    return;
  Random random(12);
  const auto module = GetParam().make(random);
  const PackedBatch batch({64, 1, 0, 100, 33});
  const at::Tensor x = random.normal({batch.rows, GetParam().d});
  const auto outcome = [&](at::ScalarType type) {
    module->to(type);
    std::vector<at::Tensor> all;
    for (const auto& sequences : {batch.sequences, Sequences::dense(2, batch.rows / 2, at::kCPU)}) {
      const at::Tensor leaf = x.to(type).clone().requires_grad_(true);
      const at::Tensor y = attention_of(module).forward(leaf, sequences).y;
      all.push_back(y.detach().to(at::kDouble));
      all.push_back(torch::autograd::grad({y.square().sum()}, {leaf})[0].to(at::kDouble));
    }
    return all;
  };
  const auto exact = outcome(at::kDouble), rounded = outcome(at::kFloat);
  for (size_t i = 0; i < exact.size(); ++i)
    EXPECT_TRUE(close(rounded[i], exact[i], 1e-4)) << i;
}

TEST_P(ZooValues, PaddingHasNoInfluence) {
  Random random(9);
  const auto module = GetParam().make(random);
  const PackedBatch batch({5, 0, 64, 33, 1});
  const at::Tensor x = random.leaf({batch.rows, GetParam().d});
  const auto inputs = with_parameters({{"x", x}}, *module);
  const at::Tensor packed = attention_of(module).forward(x, batch.sequences).y;
  const int64_t length = 70;
  const at::Tensor y = attention_of(module).forward(padded(x, batch, length, kNaN), padded_sequences(batch, length)).y;
  expect_same_function({{"y", unpadded(y, batch)}}, {packed}, inputs);
  for (int64_t b = 0; b < batch.count(); ++b)
    EXPECT_EQ(y[b].slice(0, batch.lengths[static_cast<size_t>(b)]).abs().sum().item<double>(), 0);
}

TEST_P(ZooValues, PaddingOfTheOnlySequenceHasNoInfluence) {
  Random random(13);
  const auto module = GetParam().make(random);
  const PackedBatch batch({33});
  const at::Tensor x = random.leaf({batch.rows, GetParam().d});
  const at::Tensor alone = attention_of(module).forward(x.unsqueeze(0)).y.squeeze(0);
  const at::Tensor y = attention_of(module).forward(padded(x, batch, 50, kNaN), padded_sequences(batch, 50)).y;
  expect_same_function({{"y", unpadded(y, batch)}}, {alone}, with_parameters({{"x", x}}, *module));
}

TEST_P(ZooValues, ASequenceAloneEqualsItselfInABatch) {
  Random random(10);
  const auto module = GetParam().make(random);
  const PackedBatch batch({257, 40, 3});
  const at::Tensor x = random.normal({batch.rows, GetParam().d});
  const at::Tensor together = attention_of(module).forward(x, batch.sequences).y;
  for (int64_t b = 0; b < batch.count(); ++b) {
    const at::Tensor alone = attention_of(module).forward(batch.rows_of(x, b).unsqueeze(0)).y.squeeze(0);
    EXPECT_TRUE(close(batch.rows_of(together, b), alone)) << "sequence " << b;
  }
}

TEST_P(ZooValues, CrossAttentionEqualsTheFormulaOrIsRefused) {
  Random random(11);
  const auto module = GetParam().make(random);
  const PackedBatch asking({7, 1, 64, 0, 30}), asked({2, 65, 64, 5, 1});
  const at::Tensor x = random.leaf({asking.rows, GetParam().d}), memory = random.leaf({asked.rows, GetParam().d});
  auto& layer = dynamic_cast<zoo::ZooAttention&>(*module);
  if (!zoo::member(GetParam().member).capabilities.cross_attention) {
    expect_refusal([&] { layer.attend_to(x, asking.sequences, memory, asked.sequences); },
                   {GetParam().member, "cross-attention", "dba zoo"});
    return;
  }
  const at::Tensor y = layer.attend_to(x, asking.sequences, memory, asked.sequences).y;
  const DenseLayer formula{*module, GetParam().complete(), GetParam().heads};
  std::vector<at::Tensor> expected;
  for (int64_t b = 0; b < asking.count(); ++b) {
    const at::Tensor rows = asking.rows_of(x, b);
    expected.push_back(rows.size(0) == 0 ? rows
                                         : dense_attention(GetParam().member, formula, rows, asked.rows_of(memory, b)));
  }
  expect_same_function({{"y", y}}, {at::cat(expected)}, with_parameters({{"x", x}, {"memory", memory}}, *module));
}

/// Token 20 asks for what lies along a direction of the features, and answers to it: the estimate of that pair is far
/// more than its exact weight, which replaces it, and than all other weights of the row together.
TEST(Scatterbrain, AnEstimateThatAnExactPairReplacesLeavesNoRoundingBehind) {
  constexpr int64_t kWidth = 64, kSpecial = 20;
  const zoo::OptionValues values{{"window", "8"}, {"features", "32"}, {"seed", "1"}};
  const auto module = zoo::make("scatterbrain", DBAttentionOptions(kWidth, 1), values);
  module->to(at::kDouble);
  for (auto& parameter : module->named_parameters()) {
    const torch::NoGradGuard no_grad;
    parameter.value().copy_(parameter.value().dim() == 2 ? torch::eye(kWidth, at::kDouble)
                                                         : torch::zeros({kWidth}, at::kDouble));
  }
  Random random(19);
  const at::Tensor x = random.normal({600, kWidth}).mul_(0.1);  // 150 blocks
  x[kSpecial] = module->named_buffers()["features"][0] * (std::pow(kWidth, 0.25) / 2);
  const auto outcome = [&](at::ScalarType type, const auto& function) {
    module->to(type);
    const at::Tensor leaf = x.to(type).clone().requires_grad_(true);
    const at::Tensor y = function(leaf);
    const at::Tensor dx = torch::autograd::grad({y[kSpecial].square().sum()}, {leaf})[0];
    return std::vector<at::Tensor>{y.detach().to(at::kDouble), dx.to(at::kDouble)};
  };
  const auto exact = outcome(at::kDouble, [&](const at::Tensor& rows) {
    return dense_attention("scatterbrain", {*module, values, 1}, rows, rows);
  });
  const auto ours = [&](const at::Tensor& rows) {
    return attention_of(module).forward(rows.unsqueeze(0)).y.squeeze(0);
  };
  for (const auto& [type, tolerance] : {std::pair(at::kDouble, 1e-9), {at::kFloat, 1e-4}, {at::kBFloat16, 0.1}}) {
    const auto result = outcome(type, ours);
    for (size_t i = 0; i < exact.size(); ++i)
      EXPECT_TRUE(close(result[i], exact[i], tolerance)) << at::toString(type) << (i == 0 ? " y" : " dx");
  }
}

TEST(Yoso, SumsWithinBucketsAreThoseOfTheirPairs) {
  Random random(22);
  for (const auto& [n, m, hashes, tau] :
       {std::array<int64_t, 4>{1, 1, 1, 1}, {3, 70, 5, 3}, {70, 9, 2, 16}, {65, 64, 7, 2}}) {
    const int64_t groups = 3, width = 4, buckets = int64_t{1} << tau;
    const auto rows = [&](int64_t count) { return random.normal({groups, count, width}); };
    const at::Tensor q = rows(n), k = rows(m), v = rows(m), dy = rows(n);
    // Of 16 bits some codes are negative; few of many buckets hold anybody.
    const auto codes = [&](int64_t count) {
      return (buckets - 1 - random.integers(std::min<int64_t>(buckets, 5), {groups, count, hashes})).to(at::kShort);
    };
    const at::Tensor code_q = codes(n), code_k = codes(m);
    const at::Tensor shared = code_q.unsqueeze(2).eq(code_k.unsqueeze(1)).sum(3).to(at::kDouble);  // (groups, n, m)
    const at::Tensor pull = shared * torch::bmm(dy, v.transpose(1, 2));
    for (const int64_t at_once : {int64_t{1}, int64_t{4000}, int64_t{1} << 30}) {
      const auto [for_q, for_k] = zoo::sums_within_buckets(q, k, v, dy, code_q, code_k, buckets, at::kDouble, at_once);
      EXPECT_TRUE(close(for_q, torch::bmm(pull, k))) << n << " of " << m << ", " << at_once;
      EXPECT_TRUE(close(for_k, torch::bmm(pull.transpose(1, 2), q))) << n << " of " << m << ", " << at_once;
    }
  }
}

TEST(Yoso, ASequenceInBucketsHasNoPartInAnother) {
  Random random(23);
  const auto rows = [&] { return random.normal({2, 40, 4}); };
  const at::Tensor q = rows(), k = rows(), v = rows(), dy = rows();
  const at::Tensor codes = random.integers(4, {2, 40, 3}).to(at::kShort);
  const auto sums = [&] {
    const auto [for_q, for_k] = zoo::sums_within_buckets(q, k, v, dy, codes, codes, 4, at::kDouble, 1 << 20);
    return torch::stack({for_q[0], for_k[0]});
  };
  const at::Tensor before = sums();
  for (const at::Tensor& operand : {q, k, v, dy})
    operand[1].fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(identical(sums(), before));
}

TEST(Scatterbrain, SumsBeyondAWindowAreThoseOfTheirRows) {
  Random random(21);
  for (const auto& [rows, before, after] : {std::array<int64_t, 3>{1, 1, 1}, {5, 1, 3}, {5, 9, 7}, {130, 2, 65}}) {
    const at::Tensor x = random.normal({2, rows, 3, 43});  // two groups of columns and one more
    const at::Tensor expected = at::zeros_like(x);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < rows; ++j)
        if (j <= i - before || j >= i + after)
          expected.select(1, i).add_(x.select(1, j));
    const auto strided = [](const at::Tensor& t) { return t.transpose(2, 3).contiguous().transpose(2, 3); };
    EXPECT_TRUE(close(zoo::sums_beyond(x, before, after), expected)) << rows;
    EXPECT_TRUE(close(zoo::sums_beyond(strided(x), before, after), expected)) << rows;
    const at::Tensor single = zoo::sums_beyond(x.to(at::kFloat), before, after);
    EXPECT_TRUE(close(single.to(at::kDouble), expected, 1e-5)) << rows;
    EXPECT_TRUE(identical(zoo::sums_beyond(strided(x.to(at::kFloat)), before, after), single)) << rows;
  }
}

/// Six sequences and four heads have more blocks than are summed at a time.
TEST(Scatterbrain, ABatchInSeveralPartsEqualsItsSequences) {
  constexpr int64_t kBatch = 6, kLength = 1024, kWidth = 64;
  Random random(20);
  const auto module = zoo::make("scatterbrain", DBAttentionOptions(kWidth, 4));
  module->to(at::kDouble);
  random.fill(*module);
  const at::Tensor x = random.leaf({kBatch, kLength, kWidth});
  const auto slopes = [&](const at::Tensor& y) { return torch::autograd::grad({y.square().sum()}, {x})[0]; };
  const at::Tensor together = attention_of(module).forward(x).y;
  std::vector<at::Tensor> each;
  for (int64_t b = 0; b < kBatch; ++b)
    each.push_back(attention_of(module).forward(x.slice(0, b, b + 1)).y);
  EXPECT_TRUE(close(together, at::cat(each)));
  EXPECT_TRUE(close(slopes(together), slopes(at::cat(each))));
}

INSTANTIATE_TEST_SUITE_P(Members, ZooValues, ::testing::ValuesIn(zoo_cases()),
                         [](const auto& info) { return info.param.name(); });

TEST(ZooAgreement, IsCountedAlikeByTheKernelAndByPlainOperators) {
  Random random(24);
  const at::Tensor queries = (random.integers(6, {2, 5, 9}) - 3).to(at::kShort);
  const at::Tensor keys = (random.integers(6, {2, 9, 70}) - 3).to(at::kShort);
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16})
    EXPECT_TRUE(identical(zoo::agreement_composed(queries, keys, type), zoo::agreement(queries, keys, type))) << type;
}

}  // namespace
}  // namespace dba::test

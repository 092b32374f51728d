#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <cstdint>

#include "dba/nn/dba_attention.h"
#include "dba/ops.h"
#include "ops/dropout_mask.h"
#include "support/attention_inputs.h"
#include "support/cases.h"
#include "support/comparison.h"

namespace dba::test {
namespace {

using Words = std::array<uint32_t, 4>;

/// Philox 4×32 with ten rounds, from its publication.
Words philox(Words counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t left = uint64_t{0xD2511F53} * counter[0];
    const uint64_t right = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(right >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(right),
               static_cast<uint32_t>(left >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(left)};
    key = {key[0] + 0x9E3779B9U, key[1] + 0xBB67AE85U};
  }
  return counter;
}

ops::Dropout key(double p, int64_t seed, int64_t offset) {
  return {p, at::tensor({seed, offset}, at::kLong)};
}

at::Tensor mask_of(const ops::Dropout& dropout, ops::Site site, int64_t sequence, int64_t first, int64_t tokens,
                   int64_t slots) {
  return ops::dropout_mask(dropout, site, at::tensor({sequence}, at::kLong), at::tensor({first}, at::kLong), tokens,
                           slots, at::kDouble)[0];
}

TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(DropoutMask, KeepsWhereThePublishedWordReachesTheRate) {
  const Words words = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  for (int64_t token = 0; token < 4; ++token) {
    const double word = words[static_cast<size_t>(token)];
    const auto kept = [&](double threshold) {
      return mask_of(key(threshold / 4294967296.0, 0, 0), ops::kSiteCompress, 0, 0, 4, 1)[token][0].item<double>() > 0;
    };
    EXPECT_TRUE(kept(word)) << token;
    EXPECT_FALSE(kept(word + 1)) << token;
  }
}

TEST(DropoutMask, IsTheFunctionOfItsKeyThatItClaims) {
  constexpr double kRate = 0.4;
  const auto threshold = static_cast<uint32_t>(std::floor(kRate * 4294967296.0));
  const int64_t seeds[] = {0, 12345, 0x7123456789abcdef};
  const int64_t offsets[] = {0, 4, 0x2bcdef0123456789};
  for (const int64_t seed : seeds) {
    for (const int64_t offset : offsets) {
      for (const ops::Site site : {ops::kSiteCompress, ops::kSiteCore, ops::kSiteRestore}) {
        for (const int64_t sequence : {int64_t{0}, int64_t{3}, int64_t{70000}}) {
          for (const int64_t first : {int64_t{0}, int64_t{5}, int64_t{1} << 20}) {
            const at::Tensor mask = mask_of(key(kRate, seed, offset), site, sequence, first, 7, 5);
            at::Tensor expected = at::zeros({7, 5}, at::kDouble);
            for (int64_t t = 0; t < 7; ++t) {
              for (int64_t s = 0; s < 5; ++s) {
                const int64_t token = first + t;
                const Words words =
                    philox({static_cast<uint32_t>(token >> 2), static_cast<uint32_t>(s | (int64_t{site} << 24)),
                            static_cast<uint32_t>(sequence), static_cast<uint32_t>(offset)},
                           {static_cast<uint32_t>(seed),
                            static_cast<uint32_t>(seed >> 32) ^ static_cast<uint32_t>(offset >> 32)});
                if (words[static_cast<size_t>(token & 3)] >= threshold)
                  expected[t][s] = 1 / (1 - kRate);
              }
            }
            ASSERT_TRUE(close(mask, expected, 1e-15)) << "seed " << seed << " offset " << offset << " site " << site
                                                      << " sequence " << sequence << " first token " << first;
          }
        }
      }
    }
  }
}

TEST(DropoutMask, DoesNotDependOnTheChunkItIsAskedIn) {
  const ops::Dropout dropout = key(0.3, 8, 9);
  const at::Tensor whole = mask_of(dropout, ops::kSiteRestore, 2, 0, 50, 6);
  for (const auto& [first, tokens] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 50}, {1, 1}, {7, 13}, {48, 2}, {5, 0}})
    EXPECT_TRUE(
        identical(mask_of(dropout, ops::kSiteRestore, 2, first, tokens, 6), whole.slice(0, first, first + tokens)));
  const at::Tensor together = ops::dropout_mask(dropout, ops::kSiteRestore, at::tensor({int64_t{7}, int64_t{2}}),
                                                at::tensor({int64_t{0}, int64_t{20}}), 10, 6, at::kDouble);
  EXPECT_TRUE(identical(together[1], whole.slice(0, 20, 30)));
  EXPECT_TRUE(identical(mask_of(dropout, ops::kSiteRestore, 2, 0, 50, 4), whole.slice(1, 0, 4)));
}

TEST(DropoutMask, DoesNotDependOnTheNumberOfThreads) {
  const ops::Dropout dropout = key(0.3, 8, 9);
  const at::Tensor alone = mask_of(dropout, ops::kSiteRestore, 2, 3, 30001, 7);
  at::set_num_threads(2);
  const at::Tensor shared = mask_of(dropout, ops::kSiteRestore, 2, 3, 30001, 7);
  at::set_num_threads(1);
  EXPECT_TRUE(identical(shared, alone));
}

TEST(DropoutMask, KeepsTheRateAndTheExpectation) {
  constexpr int64_t kTokens = 20000, kSlots = 10;
  constexpr double kCount = kTokens * kSlots;
  for (const double p : {0.05, 0.5, 0.9}) {
    const at::Tensor mask = mask_of(key(p, 4, 2), ops::kSiteCompress, 1, 0, kTokens, kSlots);
    const double kept = mask.gt(0).to(at::kDouble).mean().item<double>();
    EXPECT_LT(std::abs(kept - (1 - p)), 5 * std::sqrt(p * (1 - p) / kCount)) << p;
    EXPECT_LT(std::abs(mask.mean().item<double>() - 1), 5 * std::sqrt(p / (1 - p) / kCount)) << p;
    EXPECT_DOUBLE_EQ(mask.max().item<double>(), 1 / (1 - p));
    for (int64_t slot = 0; slot < kSlots; ++slot)
      EXPECT_LT(std::abs(mask.select(1, slot).gt(0).to(at::kDouble).mean().item<double>() - (1 - p)),
                5 * std::sqrt(p * (1 - p) / kTokens))
          << p;
  }
}

TEST(DropoutMask, IsOneWhereNothingIsDropped) {
  EXPECT_TRUE(identical(mask_of(key(0.0, 4, 2), ops::kSiteCompress, 1, 0, 6, 2), at::ones({6, 2}, at::kDouble)));
}

TEST(DropoutMask, IsUncorrelatedBetweenSitesSequencesSlotsSeedsAndOffsets) {
  constexpr int64_t kTokens = 20000;
  const auto draws = [&](int64_t seed, int64_t offset, ops::Site site, int64_t sequence) {
    return mask_of(key(0.5, seed, offset), site, sequence, 0, kTokens, 2);
  };
  const at::Tensor base = draws(1, 1, ops::kSiteCompress, 0);
  const std::vector<at::Tensor> others = {draws(2, 1, ops::kSiteCompress, 0), draws(1, 2, ops::kSiteCompress, 0),
                                          draws(1, 1, ops::kSiteCore, 0),     draws(1, 1, ops::kSiteRestore, 0),
                                          draws(1, 1, ops::kSiteCompress, 1), base.flip(1)};
  for (size_t i = 0; i < others.size(); ++i) {
    const double correlation = ((base - 1) * (others[i] - 1)).select(1, 0).mean().item<double>();
    EXPECT_LT(std::abs(correlation), 5 / std::sqrt(static_cast<double>(kTokens))) << i;
  }
}

TEST(DropoutDraw, FollowsTheSeedOfPyTorch) {
  torch::manual_seed(3);
  const ops::Dropout first = ops::Dropout::draw(0.2, at::kCPU), second = ops::Dropout::draw(0.2, at::kCPU);
  torch::manual_seed(3);
  const ops::Dropout again = ops::Dropout::draw(0.2, at::kCPU);
  EXPECT_EQ(first.p, 0.2);
  EXPECT_EQ(first.rng.sizes(), at::IntArrayRef({2}));
  EXPECT_TRUE(identical(again.rng, first.rng));
  EXPECT_FALSE(identical(second.rng, first.rng));
}

TEST(DropoutInOperators, KeepsTheExpectation) {
  Random random(131);
  const PackedBatch batch({30});
  const at::Tensor x = random.normal({30, 4});
  ops::ScoreRows rows;
  rows.shared = random.normal({6, 4});
  rows.linear = 3;
  const at::Tensor f = random.normal({6, 4}), m = random.normal({1, 6, 4});
  const auto expect_mean = [](const std::vector<at::Tensor>& samples, const at::Tensor& expected) {
    const at::Tensor all = at::stack(samples);
    const at::Tensor deviation = all.std(0, /*unbiased=*/true) / std::sqrt(static_cast<double>(samples.size()));
    EXPECT_TRUE(((all.mean(0) - expected).abs() <= 5 * deviation).all().item<bool>())
        << (all.mean(0) - expected).abs() / deviation;
  };
  std::vector<at::Tensor> c, r, y;
  for (int64_t seed = 0; seed < 400; ++seed) {
    const ops::Dropout dropout = key(0.3, seed, 11);
    const ops::Summary summary = ops::compress(x, batch.sequences, rows, dropout);
    c.push_back(summary.c);
    r.push_back(summary.r);
    y.push_back(ops::restore(x, batch.sequences, f, {}, m, {}, 2, false, dropout));
  }
  const ops::Summary clean = ops::compress(x, batch.sequences, rows);
  expect_mean(c, clean.c);
  expect_mean(r, clean.r);
  expect_mean(y, ops::restore(x, batch.sequences, f, {}, m, {}, 2));
}

TEST(DropoutInOperators, LeavesTheLogSumExpAlone) {
  Random random(132);
  const PackedBatch batch({30, 0, 2});
  const at::Tensor x = random.normal({32, 4});
  ops::ScoreRows rows;
  rows.shared = random.normal({6, 4});
  rows.linear = 3;
  EXPECT_TRUE(identical(ops::compress(x, batch.sequences, rows, key(0.5, 1, 2)).lse,
                        ops::compress(x, batch.sequences, rows).lse));
}

/// The mask of a token depends on its sequence's number and its place in it: not on padding, nor on the others.
TEST(DropoutInOperators, DoesNotDependOnPaddingOrBatchMates) {
  const LayerCase layer = {2, 3, false, false, true, 0.3};
  AttentionInputs given(layer, core_kinds()[0], {5, 0, 8}, 133);
  const at::Tensor packed = given.run().y;
  EXPECT_TRUE(identical(given.run().y, packed));

  at::Tensor padded = at::zeros({3 * 11, LayerCase::d}, at::kDouble);
  const Sequences sequences = Sequences::from_lengths(at::tensor(given.batch.lengths, at::kLong), 11);
  padded.index_put_({sequences.row_mask()}, given.x.detach());
  const auto run = [&](const at::Tensor& x, const Sequences& where, const ops::CoreWeights& weights) {
    return ops::attention(x, where, given.rows, weights, given.restore_rows, given.restore_bias, given.out_bias, 2,
                          false, given.dropout)
        .y;
  };
  EXPECT_TRUE(close(run(padded, sequences, given.core.weights).index({sequences.row_mask()}), packed));
  const at::Tensor alone = run(given.x.slice(0, 0, 5), PackedBatch({5}).sequences, given.core.weights);
  EXPECT_TRUE(close(alone, packed.slice(0, 0, 5)));
  const at::Tensor last = run(given.x.slice(0, 5), PackedBatch({0, 0, 8}).sequences, given.core.weights);
  EXPECT_TRUE(close(last, packed.slice(0, 5)));
}

TEST(DropoutInModules, SameSeedSameResultOtherSeedOtherResult) {
  Random random(134);
  const PackedBatch batch({6, 9});
  const at::Tensor x = random.normal({15, 8}), z = random.normal({3, 8});
  for (const Form form : {Form::paper, Form::released}) {
    for (const Order order : {Order::two_pass, Order::direct}) {
      DBAttention module(DBAttentionOptions(8, 2).d_p(3).d_in(4).form(form).order(order).dropout(0.4).z_dropout(0.2));
      module->to(at::kDouble);
      const auto run = [&](uint64_t seed) {
        torch::manual_seed(seed);
        return module->forward(x, batch.sequences, z);
      };
      const AttentionOutput one = run(1), again = run(1), other = run(2);
      EXPECT_TRUE(identical(one.y, again.y));
      EXPECT_TRUE(identical(one.z, again.z));
      EXPECT_FALSE(identical(one.y, other.y));
      EXPECT_FALSE(identical(one.z, other.z));
      module->eval();
      EXPECT_TRUE(identical(run(1).y, run(2).y));
    }
  }
}

TEST(DropoutInModules, TheTwoSequencesOfABatchDrawDifferentMasks) {
  Random random(135);
  const at::Tensor one = random.normal({1, 7, 8}), z = random.normal({3, 8});
  DBAttention module(DBAttentionOptions(8, 2).d_p(3).d_in(4).dropout(0.4));
  module->to(at::kDouble);
  const at::Tensor y = module->forward(one.expand({2, 7, 8}), std::nullopt, z).y;
  EXPECT_FALSE(identical(y[0], y[1]));
  module->eval();
  const at::Tensor clean = module->forward(one.expand({2, 7, 8}), std::nullopt, z).y;
  EXPECT_TRUE(close(clean[0], clean[1]));
}

/// The reference in integer tensors, which serves devices without a kernel of their own.
TEST(DropoutMask, OfTheReferenceIsTheKernels) {
  const at::Tensor sequence = at::tensor({0, 7, 4}, at::kLong);
  const at::Tensor first = at::tensor({int64_t{0}, int64_t{6}, int64_t{1} << 35}, at::kLong);
  for (const int64_t seed : {int64_t{0}, int64_t{0x7123456789ABCDEF}, int64_t{-1}}) {
    const ops::Dropout dropout = key(0.3, seed, seed / 3);
    const at::Tensor kernel = ops::dropout_mask(dropout, ops::kSiteRestore, sequence, first, 13, 5, at::kDouble);
    const at::Tensor reference =
        ops::dropout_mask_reference(dropout.rng, dropout.p, ops::kSiteRestore, sequence, first, 13, 5, at::kDouble);
    EXPECT_TRUE(at::equal(kernel, reference)) << "seed " << seed;
  }
}

/// Pieces that begin and end anywhere in quads, strips and panels.
TEST(DropoutMask, OfTheReferenceIsTheKernelsForAnyShapeAndType) {
  const ops::Dropout dropout = key(0.3, 5, 11);
  for (const int64_t tokens : {0, 1, 3, 15, 16, 17, 50}) {
    for (const int64_t slots : {0, 1, 31, 64, 65, 200}) {
      for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
        const at::Tensor sequence = at::tensor({3, 1}, at::kLong);
        const at::Tensor first = at::tensor({int64_t{tokens % 4 + 13}, int64_t{16}}, at::kLong);
        EXPECT_TRUE(at::equal(ops::dropout_mask(dropout, ops::kSiteRestore, sequence, first, tokens, slots, type),
                              ops::dropout_mask_reference(dropout.rng, dropout.p, ops::kSiteRestore, sequence, first,
                                                          tokens, slots, type)))
            << tokens << " tokens, " << slots << " slots, " << type;
      }
    }
  }
}

}  // namespace
}  // namespace dba::test

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "bench/memory.h"
#include "dba/zoo.h"
#include "nn/padded.h"
#include "nn/transient_map.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "zoo/layers.h"

/// Maps that exist for some queries at a time, and are computed again for the gradients.
namespace dba::test {
namespace {

constexpr double kRate = 0.3;

/// How large a piece of a map is depends on the number of threads.
class WithThreads {
 public:
  explicit WithThreads(int threads) : before_(at::get_num_threads()) {
    at::set_num_threads(threads);
  }
  ~WithThreads() {
    at::set_num_threads(before_);
  }
  WithThreads(const WithThreads&) = delete;
  WithThreads& operator=(const WithThreads&) = delete;

 private:
  int before_;
};

/// Queries of some blocks with keys of their own, some of them hidden, and keys that all blocks share.
struct TwoParts {
  TwoParts(int64_t blocks, int64_t size) : random(5) {
    q = random.leaf({2, 3, blocks, size, 4});
    own = random.leaf({2, 3, blocks, kOwn, 4});
    shared = random.leaf({2, 3, 1, kShared, 4});
    own_values = random.leaf({2, 3, blocks, kOwn, kWidth});
    shared_values = random.leaf({2, 3, 1, kShared, kWidth});
    mask = random.normal({2, 1, blocks, 1, kOwn}).gt(-0.5);
    mask[0][0][0].fill_(false);
  }
  at::Tensor attend(double dropout, const at::Tensor& values, const at::Tensor& more_values) const {
    torch::manual_seed(9);
    return transient_map_attention(q, {{own, values, mask}, {shared, more_values, {}}}, dropout);
  }
  /// The map (B, H, blocks, size, all keys), every one of them written out; `added` to its scores.
  at::Tensor map(const at::Tensor& added = at::zeros({}, at::kDouble)) const {
    const at::Tensor scores = q.matmul(own.transpose(3, 4)).masked_fill(mask.logical_not(), -INFINITY);
    return at::softmax(at::cat({scores, q.matmul(shared.transpose(3, 4))}, 4) / 2 + added, 4);
  }
  /// What dropout left of the map: with a value for each key that has a one in the key's place.
  at::Tensor what_is_left() const {
    const at::Tensor one = at::eye(kOwn + kShared, at::kDouble);
    const auto spread = [&](const at::Tensor& rows, int64_t blocks) { return rows.expand({2, 3, blocks, -1, -1}); };
    return attend(kRate, spread(one.slice(0, 0, kOwn), q.size(2)), spread(one.slice(0, kOwn), 1)).detach();
  }
  std::vector<Named> inputs() const {
    return {
        {"queries", q}, {"keys", own}, {"shared", shared}, {"values", own_values}, {"shared values", shared_values}};
  }

  static constexpr int64_t kOwn = 37, kShared = 11, kWidth = 5;
  Random random;
  at::Tensor q, own, shared, own_values, shared_values, mask;
};

/// Blocks and queries of a block: one piece; pieces of blocks; pieces of a block.
class TransientMap : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {
 protected:
  const WithThreads one{1};
  const TwoParts parts{GetParam().first, GetParam().second};
};

TEST_P(TransientMap, EqualsTheMapWrittenOut) {
  const at::Tensor map = parts.map();
  const at::Tensor y = map.slice(4, 0, TwoParts::kOwn).matmul(parts.own_values) +
                       map.slice(4, TwoParts::kOwn).matmul(parts.shared_values);
  expect_same_function({{"y", parts.attend(0, parts.own_values, parts.shared_values)}}, {y}, parts.inputs());
}

TEST_P(TransientMap, AddsToTheScores) {
  // Numbers for every query and key, shared by sequences and blocks, or by nobody.
  const int64_t blocks = parts.q.size(2), size = parts.q.size(3), keys = TwoParts::kOwn + TwoParts::kShared;
  const at::Tensor weight = Random(8).leaf({});
  for (const auto& sizes :
       {std::vector<int64_t>{1, 3, 1, size, keys}, std::vector<int64_t>{2, 3, blocks, size, keys}}) {
    const at::Tensor scores = Random(7).leaf(sizes);
    const at::Tensor map = parts.map(weight * scores);
    const at::Tensor y = map.slice(4, 0, TwoParts::kOwn).matmul(parts.own_values) +
                         map.slice(4, TwoParts::kOwn).matmul(parts.shared_values);
    auto inputs = parts.inputs();
    inputs.insert(inputs.end(), {{"scores", scores}, {"weight", weight}});
    const at::Tensor attended = transient_map_attention(
        parts.q, {{parts.own, parts.own_values, parts.mask}, {parts.shared, parts.shared_values, {}}}, {scores, weight},
        0);
    expect_same_function({{"y", attended}}, {y}, inputs);
  }
}

TEST_P(TransientMap, DropsEntriesOfTheMapAndKnowsThemAgain) {
  const at::Tensor map = parts.map(), left = parts.what_is_left();
  const at::Tensor kept = left.ne(0).to(at::kDouble) / (1 - kRate);
  EXPECT_TRUE(close(left, map * kept));
  const at::Tensor seen = map.detach().gt(0);
  EXPECT_NEAR(left.eq(0).logical_and(seen).sum().item<double>() / seen.sum().item<double>(), kRate, 0.02);
  const at::Tensor dropped = map * kept;
  const at::Tensor y = dropped.slice(4, 0, TwoParts::kOwn).matmul(parts.own_values) +
                       dropped.slice(4, TwoParts::kOwn).matmul(parts.shared_values);
  expect_same_function({{"y", parts.attend(kRate, parts.own_values, parts.shared_values)}}, {y}, parts.inputs());
}

INSTANTIATE_TEST_SUITE_P(Pieces, TransientMap,
                         ::testing::Values(std::pair<int64_t, int64_t>{3, 20}, std::pair<int64_t, int64_t>{40, 21},
                                           std::pair<int64_t, int64_t>{2, 2900}),
                         [](const auto& info) { return "Blocks" + std::to_string(info.param.first); });

TEST(TransientMaps, AQueryThatSeesNothingIsFiniteAndWithoutInfluence) {
  Random random(6);
  const at::Tensor q = random.leaf({1, 1, 1, 2, 4}), k = random.leaf({1, 1, 1, 3, 4}),
                   v = random.normal({1, 1, 1, 3, 4});
  const at::Tensor mask = at::tensor({0, 0, 0, 1, 0, 1}).to(at::kBool).view({1, 1, 1, 2, 3});
  const at::Tensor y = transient_map_attention(q, {{k, v, mask}}, 0);
  EXPECT_TRUE(all_finite(y));
  const auto gradients = torch::autograd::grad({y[0][0][0][0].sum()}, {q, k});
  for (const auto& gradient : gradients)
    EXPECT_EQ(gradient.abs().sum().item<double>(), 0);
}

std::vector<std::string> dropping_members() {
  std::vector<std::string> all;
  for (const auto& member : zoo::members())
    if (member.capabilities.dropout)
      all.push_back(member.name);
  return all;
}

class ZooDropout : public ::testing::TestWithParam<std::string> {
 protected:
  const zoo::Member& member = zoo::member(GetParam());
};

TEST_P(ZooDropout, GradientsAreThoseOfTheEntriesThatWereDropped) {
  // Tokens that a step of a difference takes to another bucket have no derivative: there are few, and two buckets.
  const bool hashes = member.name == "reformer";
  const auto layer = layer_of(member, hashes ? OptionValues{{"chunk", "4"}, {"buckets", "2"}} : OptionValues{}, kRate);
  const PackedBatch batch(hashes ? std::vector<int64_t>{9, 0, 6} : std::vector<int64_t>{70, 0, 33});
  const at::Tensor x = Random(7).leaf({batch.rows, 8});
  const auto loss = [&] {
    torch::manual_seed(11);
    return random_projection({dynamic_cast<Attention&>(*layer).forward(x, batch.sequences).y}, 12);
  };
  expect_gradients(with_parameters({{"x", x}}, *layer), loss, 13, /*one_by_one=*/false);
}

TEST_P(ZooDropout, EntriesDoNotDependOnHowTheMapIsCut) {
  const auto layer = layer_of(member, {}, kRate);
  const at::Tensor x = Random(8).leaf({2, 500, 8});
  const auto outcome = [&](int threads) {
    const WithThreads some(threads);
    torch::manual_seed(14);
    const at::Tensor y = run(layer, x);
    return std::pair(y, torch::autograd::grad({y.square().sum()}, {x})[0]);
  };
  const auto few = outcome(1), many = outcome(5);
  EXPECT_TRUE(close(few.first, many.first));
  EXPECT_TRUE(close(few.second, many.second));
}

INSTANTIATE_TEST_SUITE_P(Members, ZooDropout, ::testing::ValuesIn(dropping_members()),
                         [](const auto& info) { return info.param; });

class SynthesizerKinds : public ::testing::TestWithParam<const char*> {
 protected:
  const WithThreads one{1};
  const std::shared_ptr<torch::nn::Module> layer = layer_of(zoo::member("synthesizer"), {{"kind", GetParam()}}, kRate);
  at::Tensor dropped(const at::Tensor& x, const Sequences& sequences) const {
    torch::manual_seed(15);
    return dynamic_cast<Attention&>(*layer).forward(x, sequences).y;
  }
};

TEST_P(SynthesizerKinds, APlainBatchDropsWhatAMaskedOneDrops) {
  // Pieces of several sequences, and of some queries of one.
  for (const int64_t n : {70, 500}) {
    SCOPED_TRACE(n);
    const at::Tensor x = Random(16).leaf({3, n, 8});
    const auto plain = Sequences::dense(3, n, at::kCPU);
    const auto masked = Sequences::from_mask(at::ones({3, n}, at::kBool));
    ASSERT_TRUE(is_plain(plain) && !is_plain(masked));
    expect_same_function({{"y", dropped(x, plain)}}, {dropped(x, masked)}, with_parameters({{"x", x}}, *layer));
  }
}

TEST_P(SynthesizerKinds, GradientsInAPlainBatchAreThoseOfTheEntriesThatWereDropped) {
  const at::Tensor x = Random(17).leaf({3, 40, 8});
  const auto loss = [&] { return random_projection({dropped(x, Sequences::dense(3, 40, at::kCPU))}, 18); };
  expect_gradients(with_parameters({{"x", x}}, *layer), loss, 19, /*one_by_one=*/false);
}

INSTANTIATE_TEST_SUITE_P(All, SynthesizerKinds,
                         ::testing::Values("dense", "factorised_dense", "random", "factorised_random", "mixed"),
                         [](const auto& info) { return info.param; });

TEST(ZooDropouts, SixteenBitsKeepTheMeanOfASharedMap) {
  // 1/(1 − p) is not a number of 16 bits: 1.6 thousandths would be missing.
  const torch::NoGradGuard no_grad;
  const auto layer = layer_of(zoo::member("synthesizer"), {}, 0.1);
  for (auto& item : layer->named_parameters())
    if (item.key() != "r")
      item.value().copy_(item.value().dim() == 2 ? at::eye(8) : at::zeros(8));
  layer->to(at::kBFloat16);
  const at::Tensor x = Random(20).normal({4, 500, 8}).abs().to(at::kBFloat16);
  const auto sum = [&](at::ScalarType type) {
    layer->to(type);
    torch::manual_seed(21);
    return run(layer, x.to(type)).to(at::kDouble).sum().item<double>();
  };
  const double rounded = sum(at::kBFloat16);
  EXPECT_NEAR(rounded / sum(at::kDouble), 1, 3e-4);
}

TEST(ZooDropouts, ReformerKeepsItsMean) {
  const auto& member = zoo::member("reformer");
  const at::Tensor x = Random(9).normal({1, 70, 8});
  const auto layer = layer_of(member, {{"chunk", "16"}, {"buckets", "4"}}, kRate);
  const torch::NoGradGuard no_grad;
  layer->eval();
  const at::Tensor still = run(layer, x);
  layer->train();
  constexpr int kRuns = 400;
  at::Tensor sum = at::zeros_like(still);
  for (int i = 0; i < kRuns; ++i) {
    torch::manual_seed(i);
    sum += run(layer, x);
  }
  EXPECT_TRUE(close(sum / kRuns, still, 0.05));
}

/// A member, and about how many entries its map of one head has for each of so many tokens.
struct MapSize {
  const char* member;
  OptionValues values;
  int64_t tokens, keys;
};

class ZooMaps : public ::testing::TestWithParam<MapSize> {};

TEST_P(ZooMaps, NoMapIsKept) {
  constexpr int64_t kHeads = 8, kBatch = 4, kWidth = 2 * kHeads;
  const WithThreads one(1);
  const auto& [name, values, tokens, keys] = GetParam();
  const auto peak = [&](at::ScalarType type, double dropout) {
    const auto layer = zoo::make(name, DBAttentionOptions(kWidth, kHeads).dropout(dropout),
                                 with_length(zoo::member(name), values, tokens));
    layer->to(type);
    const at::Tensor x = Random(1).normal({kBatch, tokens, kWidth}).to(type).requires_grad_(true);
    const auto pass = [&] { run(layer, x).sum().backward(); };
    return bench::measure_peak(at::kCPU, pass).tensors;
  };
  const int64_t entries = kBatch * kHeads * tokens * keys;
  // In single precision and without dropout PyTorch has kernels for the CPU that keep no map.
  EXPECT_LT(peak(at::kFloat, 0), entries * static_cast<int64_t>(sizeof(float)));
  EXPECT_LT(peak(at::kFloat, 0.1), entries * static_cast<int64_t>(sizeof(float)));
  EXPECT_LT(peak(at::kDouble, 0), entries * static_cast<int64_t>(sizeof(double)));
}

INSTANTIATE_TEST_SUITE_P(
    Members, ZooMaps,
    ::testing::Values(MapSize{"softmax", {}, 500, 500},                                                 //
                      MapSize{"local", {{"block", "256"}}, 500, 256}, MapSize{"sparse", {}, 500, 199},  //
                      MapSize{"longformer", {}, 500, 769}, MapSize{"bigbird", {}, 500, 512},
                      MapSize{"linformer", {{"k", "256"}}, 500, 256}, MapSize{"reformer", {}, 500, 256},
                      MapSize{"sinkhorn", {{"block", "128"}}, 500, 256},
                      MapSize{"nystromformer", {{"landmarks", "64"}}, 2000, 128}, MapSize{"pixelfly", {}, 500, 192},
                      MapSize{"synthesizer", {{"kind", "mixed"}}, 500, 500}),
    [](const auto& info) { return info.param.member; });

}  // namespace
}  // namespace dba::test

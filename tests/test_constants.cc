#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "dba/sequences.h"
#include "ops/constants.h"
#include "support/cases.h"
#include "support/comparison.h"

/// Tensors that are kept from call to call: given again to whoever asks for the same, made anew for all others.
namespace dba::test {
namespace {

using ops::ConstantKey;

struct Constants : testing::Test {
  Constants() {
    ops::forget_constants();
  }
  ~Constants() override {
    ops::forget_constants();
  }

  at::Tensor ask(const std::optional<ConstantKey>& key, at::TensorOptions options = at::kLong) {
    return ops::constant(key, options, [&] {
      ++made;
      return at::full({4}, made, options);
    });
  }
  int64_t made = 0;
};

TEST_F(Constants, TheSameQuestionHasTheSameTensor) {
  const auto first = ask(ConstantKey{"mask", {3, 5}});
  EXPECT_TRUE(ask(ConstantKey{"mask", {3, 5}}).is_same(first));
  EXPECT_EQ(made, 1);
}

TEST_F(Constants, OtherNamesNumbersAndTypesHaveTensorsOfTheirOwn) {
  ask(ConstantKey{"mask", {3, 5}});
  ask(ConstantKey{"mask", {5, 3}});
  ask(ConstantKey{"mask", {3}});
  ask(ConstantKey{"index", {3, 5}});
  ask(ConstantKey{"mask", {3, 5}}, at::kFloat);
  ask(ConstantKey{"mask", {3, 5}}.with("bias"));
  ask(ConstantKey{"mask", {3}}.with("bias", {5}));
  EXPECT_EQ(made, 7);
  EXPECT_EQ(ask(ConstantKey{"mask", {3, 5}}).sum().item<int64_t>(), 4);
}

TEST_F(Constants, WithoutAKeyNothingIsKept) {
  ask(std::nullopt);
  ask(std::nullopt);
  EXPECT_EQ(made, 2);
}

TEST_F(Constants, WhatSomebodyWroteIntoIsMadeAnew) {
  ask(ConstantKey{"mask", {}}).fill_(77);
  EXPECT_EQ(ask(ConstantKey{"mask", {}}).max().item<int64_t>(), 2);
  EXPECT_EQ(ask(ConstantKey{"mask", {}}).max().item<int64_t>(), 2);
  EXPECT_EQ(made, 2);
}

TEST_F(Constants, OnlyTheLatestOfManyAreKept) {
  for (int64_t i = 0; i < 100; ++i) {
    ask(ConstantKey{"mask", {i}});
    ask(ConstantKey{"mask", {0}});  // the latest once more
  }
  EXPECT_EQ(made, 100);
  ask(ConstantKey{"mask", {99}});
  EXPECT_EQ(made, 100);
  ask(ConstantKey{"mask", {1}});
  EXPECT_EQ(made, 101);
}

TEST_F(Constants, LargeTensorsAreNotKept) {
  const auto large = [&](int64_t megabytes, int64_t number) {
    return ops::constant(ConstantKey{"large", {megabytes, number}}, at::kByte, [&] {
      ++made;
      return at::empty({megabytes << 20}, at::kByte);
    });
  };
  large(17, 0);
  large(17, 0);
  EXPECT_EQ(made, 2);
  for (int64_t i = 0; i < 5; ++i)  // together more than are kept
    large(15, i);
  made = 0;
  large(15, 4);
  EXPECT_EQ(made, 0);
  large(15, 0);
  EXPECT_EQ(made, 1);
}

TEST_F(Constants, WhatInferenceModeMadeServesTraining) {
  at::Tensor index;
  {
    const c10::InferenceMode inference;
    index = ops::constant(ConstantKey{"index", {}}, at::kLong, [] { return at::arange(3, at::kLong); });
    const auto inside = at::arange(3, at::kLong);
    ops::constant(ConstantKey{"view", {}}, at::kLong, [&] { return inside.view({3, 1}); });
  }
  const auto again = ops::constant(ConstantKey{"index", {}}, at::kLong, [] { return at::Tensor(); });
  EXPECT_TRUE(again.is_same(index));
  const at::Tensor x = at::ones({3, 2}, at::kDouble).requires_grad_(true);
  x.index_select(0, again).sum().backward();
  EXPECT_TRUE(identical(x.grad(), at::ones({3, 2}, at::kDouble)));
  const auto view = ops::constant(ConstantKey{"view", {}}, at::kLong, [] { return at::Tensor(); });
  EXPECT_FALSE(view.is_inference());
}

TEST_F(Constants, ThreadsMayAskAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<bool> right = true;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int64_t i = 0; i < 2000; ++i) {
        const int64_t number = i % 90;
        const auto found = ops::constant(ConstantKey{"number", {number}}, at::kLong,
                                         [&] { return at::full({2}, number, at::kLong); });
        right = right && found.data_ptr<int64_t>()[1] == number;
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  EXPECT_TRUE(right);
}

TEST_F(Constants, BoundsOfAPlainBatchAreMadeOnceAndRightForEveryShape) {
  for (int pass = 0; pass < 2; ++pass) {
    for (const auto& [batch, length] : std::vector<std::pair<int64_t, int64_t>>{{3, 4}, {4, 3}, {1, 7}, {2, 0}, {0, 5}}) {
      const auto sequences = Sequences::dense(batch, length, at::kCPU);
      ASSERT_EQ(sequences.begin.size(0), batch);
      for (int64_t b = 0; b < batch; ++b) {
        EXPECT_EQ(sequences.begin[b].item<int64_t>(), b * length);
        EXPECT_EQ(sequences.end[b].item<int64_t>(), (b + 1) * length);
      }
    }
  }
  EXPECT_TRUE(Sequences::dense(3, 4, at::kCPU).begin.is_same(Sequences::dense(3, 4, at::kCPU).begin));
}

}  // namespace
}  // namespace dba::test

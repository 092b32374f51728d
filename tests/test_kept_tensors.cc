#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "dba/sequences.h"
#include "ops/kept_tensors.h"
#include "support/cases.h"
#include "support/comparison.h"

/// Tensors that are kept from call to call: given again to whoever asks for the same, made anew for all others.
namespace dba::test {
namespace {

using ops::KeptKey;

struct KeptTensors : testing::Test {
  KeptTensors() {
    ops::forget_kept_tensors();
  }
  ~KeptTensors() override {
    ops::forget_kept_tensors();
  }

  at::Tensor ask(const std::optional<KeptKey>& key, at::TensorOptions options = at::kLong) {
    return ops::kept_tensor(key, options, [&] {
      ++made;
      return at::full({4}, made, options);
    });
  }
  int64_t made = 0;
};

TEST_F(KeptTensors, TheSameQuestionHasTheSameTensor) {
  const auto first = ask(KeptKey{"mask", {3, 5}});
  EXPECT_TRUE(ask(KeptKey{"mask", {3, 5}}).is_same(first));
  EXPECT_EQ(made, 1);
}

TEST_F(KeptTensors, OtherNamesNumbersAndTypesHaveTensorsOfTheirOwn) {
  ask(KeptKey{"mask", {3, 5}});
  ask(KeptKey{"mask", {5, 3}});
  ask(KeptKey{"mask", {3}});
  ask(KeptKey{"index", {3, 5}});
  ask(KeptKey{"mask", {3, 5}}, at::kFloat);
  ask(ops::more_of(KeptKey{"mask", {3, 5}}, "bias"));
  ask(ops::more_of(KeptKey{"mask", {3}}, "bias", {5}));
  EXPECT_EQ(made, 7);
  EXPECT_EQ(ask(KeptKey{"mask", {3, 5}}).sum().item<int64_t>(), 4);
}

TEST_F(KeptTensors, WithoutAKeyNothingIsKept) {
  ask(std::nullopt);
  ask(ops::more_of(std::nullopt, "bias", {5}));
  EXPECT_EQ(made, 2);
}

TEST_F(KeptTensors, WhatSomebodyWroteIntoIsMadeAnew) {
  ask(KeptKey{"mask", {}}).fill_(77);
  EXPECT_EQ(ask(KeptKey{"mask", {}}).max().item<int64_t>(), 2);
  EXPECT_EQ(ask(KeptKey{"mask", {}}).max().item<int64_t>(), 2);
  EXPECT_EQ(made, 2);
}

TEST_F(KeptTensors, OnlyTheLatestOfManyAreKept) {
  for (int64_t i = 0; i < 400; ++i) {
    ask(KeptKey{"mask", {i}});
    ask(KeptKey{"mask", {0}});  // the latest once more
  }
  EXPECT_EQ(made, 400);
  ask(KeptKey{"mask", {399}});
  EXPECT_EQ(made, 400);
  ask(KeptKey{"mask", {1}});
  EXPECT_EQ(made, 401);
}

TEST_F(KeptTensors, LargeTensorsAreNotKept) {
  const auto large = [&](int64_t megabytes, int64_t number) {
    return ops::kept_tensor(KeptKey{"large", {megabytes, number}}, at::kByte, [&] {
      ++made;
      return at::empty({megabytes << 20}, at::kByte);
    });
  };
  large(17, 0);
  large(17, 0);
  EXPECT_EQ(made, 2);
  for (int64_t i = 0; i < 5; ++i)  // together more than are kept
    large(15, i);
  ops::kept_tensors(KeptKey{"views", {}}, at::kByte, [] {  // of one tensor: its bytes count once
    const at::Tensor all = at::empty({12 << 20}, at::kByte);
    return std::vector<at::Tensor>{all, all.narrow(0, 0, 5), all.view({2, -1})};
  });
  EXPECT_EQ(ops::kept_tensors(KeptKey{"views", {}}, at::kByte, [] { return std::vector<at::Tensor>(); }).size(), 3U);
  made = 0;
  large(15, 4);
  EXPECT_EQ(made, 0);
  large(15, 0);
  EXPECT_EQ(made, 1);
}

TEST_F(KeptTensors, WhatInferenceModeMadeServesTraining) {
  at::Tensor index;
  {
    const c10::InferenceMode inference;
    index = ops::kept_tensor(KeptKey{"index", {}}, at::kLong, [] { return at::arange(3, at::kLong); });
    const auto inside = at::arange(3, at::kLong);
    ops::kept_tensor(KeptKey{"view", {}}, at::kLong, [&] { return inside.view({3, 1}); });
  }
  const auto again = ops::kept_tensor(KeptKey{"index", {}}, at::kLong, [] { return at::Tensor(); });
  EXPECT_TRUE(again.is_same(index));
  const at::Tensor x = at::ones({3, 2}, at::kDouble).requires_grad_(true);
  x.index_select(0, again).sum().backward();
  EXPECT_TRUE(identical(x.grad(), at::ones({3, 2}, at::kDouble)));
  const auto view = ops::kept_tensor(KeptKey{"view", {}}, at::kLong, [] { return at::Tensor(); });
  EXPECT_FALSE(view.is_inference());
}

TEST_F(KeptTensors, ThreadsMayAskAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<bool> right = true;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int64_t i = 0; i < 2000; ++i) {
        const int64_t number = i % 300;
        const auto found =
            ops::kept_tensor(KeptKey{"number", {number}}, at::kLong, [&] { return at::full({2}, number, at::kLong); });
        right = right && found.data_ptr<int64_t>()[1] == number;
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  EXPECT_TRUE(right);
}

TEST_F(KeptTensors, BoundsOfAPlainBatchAreMadeOnceAndRightForEveryShape) {
  for (int pass = 0; pass < 2; ++pass) {
    for (const auto& [batch, length] :
         std::vector<std::pair<int64_t, int64_t>>{{3, 4}, {4, 3}, {1, 7}, {2, 0}, {0, 5}}) {
      const auto sequences = Sequences::dense(batch, length, at::kCPU);
      ASSERT_EQ(sequences.begin.size(0), batch);
      for (int64_t b = 0; b < batch; ++b) {
        EXPECT_EQ(sequences.begin[b].item<int64_t>(), b * length);
        EXPECT_EQ(sequences.end[b].item<int64_t>(), (b + 1) * length);
      }
    }
  }
  const auto one = Sequences::dense(3, 4, at::kCPU), other = Sequences::dense(3, 4, at::kCPU);
  EXPECT_TRUE(one.begin.is_same(other.begin));
  EXPECT_FALSE(one.begin.is_alias_of(one.end));
}

}  // namespace
}  // namespace dba::test

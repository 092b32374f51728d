#include <gtest/gtest.h>

#include "dba/nn/dba_attention.h"
#include "support/comparison.h"
#include "support/layouts.h"

namespace dba::test {
namespace {

struct OrderCase {
  Form form;
  Normalise normalise;
  bool per_sequence, bias, compress_width;
};

std::ostream& operator<<(std::ostream& stream, const OrderCase& one) {
  return stream << to_string(one.form) << (one.normalise == Normalise::linear ? " linear" : "")
                << (one.per_sequence ? " each" : "") << (one.bias ? "" : " nobias")
                << (one.compress_width ? "" : " wide");
}

class Orders : public ::testing::TestWithParam<OrderCase> {};

TEST_P(Orders, AgreeInValuesAndGradientsOverPackedSequences) {
  const auto& given = GetParam();
  Random random(7);
  for (const auto& lengths : {kLengths, kShortLengths, std::vector<int64_t>{0, 0}}) {
    const PackedBatch batch(lengths);
    DBAttention module(DBAttentionOptions(12, 3)
                           .d_p(4)
                           .d_in(5)
                           .form(given.form)
                           .normalise(given.normalise)
                           .bias(given.bias)
                           .compress_width(given.compress_width)
                           .z_update(ZUpdate::replace));
    module->to(at::kDouble);
    random.fill(*module);
    const at::Tensor x = random.leaf({batch.rows, 12});
    const at::Tensor z = given.per_sequence ? random.leaf({batch.count(), 4, 12}) : random.leaf({4, 12});
    const auto run = [&](Order order) {
      module->options.order(order);
      const auto output = module->forward(x, batch.sequences, z);
      return std::vector<Named>{{"y", output.y}, {"z", output.z}};
    };
    for (const Order order : {Order::projected, Order::direct, Order::automatic}) {
      SCOPED_TRACE(to_string(order));
      const auto expected = run(Order::two_pass);
      expect_same_function(run(order), {expected[0].tensor, expected[1].tensor},
                           with_parameters({{"x", x}, {"z", z}}, *module));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, Orders,
                         ::testing::Values(OrderCase{Form::paper, Normalise::softmax, false, true, true},
                                           OrderCase{Form::paper, Normalise::softmax, true, false, true},
                                           OrderCase{Form::paper, Normalise::linear, true, true, false},
                                           OrderCase{Form::released, Normalise::softmax, false, true, true},
                                           OrderCase{Form::released, Normalise::softmax, true, false, true}));

TEST(ProjectedOrder, NeverReadsPaddingNorLetsItReachAGradient) {
  Random random(8);
  const PackedBatch batch({3, 0, 6});
  for (const Form form : {Form::paper, Form::released}) {
    DBAttention module(DBAttentionOptions(8, 2).d_p(3).d_in(4).form(form).order(Order::projected));
    module->to(at::kDouble);
    random.fill(*module);
    const at::Tensor x = random.normal({9, 8}), z = random.normal({3, 8});
    const at::Tensor packed = module->forward(x, batch.sequences, z).y;
    module->zero_grad();
    packed.sum().backward();
    const at::Tensor expected = module->w_q->weight.grad().clone();
    module->zero_grad();
    const at::Tensor poisoned = padded(x, batch, 7, kNaN).requires_grad_();
    const at::Tensor y = module->forward(poisoned, padded_sequences(batch, 7), z).y;
    EXPECT_TRUE(close(unpadded(y, batch), packed));
    y.sum().backward();
    EXPECT_TRUE(close(module->w_q->weight.grad(), expected));
    EXPECT_TRUE(all_finite(poisoned.grad()));
  }
}

TEST(ProjectedOrder, WithDropoutIsTheTwoPasses) {
  Random random(9);
  DBAttention module(DBAttentionOptions(8, 2).d_p(3).d_in(4).dropout(0.4));
  module->to(at::kDouble);
  const at::Tensor x = random.normal({2, 7, 8}), z = random.normal({3, 8});
  const auto run = [&](Order order) {
    torch::manual_seed(3);
    module->options.order(order);
    return module->forward(x, std::nullopt, z).y;
  };
  const at::Tensor expected = run(Order::two_pass);
  EXPECT_TRUE(identical(run(Order::projected), expected));
  EXPECT_TRUE(close(run(Order::automatic), expected));
}

TEST(Order, HasNames) {
  for (const Order order : {Order::two_pass, Order::projected, Order::direct, Order::automatic}) {
    EXPECT_EQ(parse_order(to_string(order)), order);
  }
  expect_refusal([] { parse_order("sideways"); }, {"parse_order", "sideways", "projected"});
}

}  // namespace
}  // namespace dba::test

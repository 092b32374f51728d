#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "dba/nn/dba_attention.h"
#include "dba/nn/dba_cross_attention.h"
#include "dba/nn/softmax_attention.h"
#include "dba/ops.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "support/plain_operators.h"

/// Element types other than double, and numbers near their limits.
namespace dba::test {
namespace {

double epsilon(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return std::ldexp(1.0, -7);
    case at::kHalf:
      return std::ldexp(1.0, -10);
    default:
      return std::ldexp(1.0, -23);
  }
}

void expect_same_values(const std::vector<Named>& actual, const std::vector<at::Tensor>& expected, double tolerance) {
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(close(actual[i].tensor, expected[i], tolerance)) << "value of " << actual[i].name;
}

class Magnitudes : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  const at::ScalarType dtype = GetParam();
  const double eps = epsilon(dtype);

  /// A leaf of the type, and the same numbers as a leaf in double.
  std::pair<at::Tensor, at::Tensor> twins(const at::Tensor& values) const {
    const at::Tensor rounded = values.to(dtype);
    return {rounded.clone().requires_grad_(true), rounded.to(at::kDouble).requires_grad_(true)};
  }
};

/// Tokens in quarters and rows in multiples of 2560: every score is exact in float32, and reaches ±1e4.
TEST_P(Magnitudes, CompressAndRestoreAreRightForScoresOfTenThousand) {
  Random random(151);
  const PackedBatch batch({1, 37, 0, 100});
  const at::Tensor quarters = (random.normal({batch.rows, 8}) * 2).round().clamp(-2, 2) / 4;
  const at::Tensor steep = (random.normal({12, 8}) * 2).round().clamp(-4, 4) * 2560;
  const auto [x, x_double] = twins(quarters);
  const auto [rows, rows_double] = twins(steep);
  const auto [m, m_double] = twins(random.normal({4, 12, 5}));
  ASSERT_TRUE(identical(x_double.detach(), quarters));
  ASSERT_TRUE(identical(rows_double.detach(), steep));
  ASSERT_GT(x_double.matmul(rows_double.t()).abs().max().item<double>(), 1e4);

  ops::ScoreRows given, given_double;
  given.shared = rows;
  given_double.shared = rows_double;
  const ops::Summary got = ops::compress(x, batch.sequences, given);
  const ops::Summary expected = plain_compress(x_double, batch, given_double);
  EXPECT_EQ(got.c.scalar_type(), at::kFloat);
  EXPECT_TRUE(close(got.c, expected.c, 4 * eps));
  EXPECT_TRUE(close(got.r, expected.r, 4 * eps));
  EXPECT_TRUE(identical(got.lse.isinf(), expected.lse.isinf()));
  EXPECT_TRUE(close(got.lse.masked_fill(got.lse.isinf(), 0), expected.lse.masked_fill(expected.lse.isinf(), 0),
                    4 * epsilon(at::kFloat)));

  const at::Tensor y = ops::restore(x, batch.sequences, rows, {}, m, {}, 3);
  EXPECT_EQ(y.scalar_type(), dtype);
  EXPECT_TRUE(close(y, plain_restore(x_double, batch, rows_double, {}, m_double, {}, 3, false), 4 * eps));

  const auto gradients = torch::autograd::grad({random_projection({got.c, got.r, y}, 3)}, {x, rows, m});
  for (size_t i = 0; i < gradients.size(); ++i)
    EXPECT_TRUE(all_finite(gradients[i])) << i;
}

TEST_P(Magnitudes, ModulesStayFiniteForLargeTokens) {
  Random random(152);
  // float16 ends at 65504, and the projections add to what comes in.
  const double large = dtype == at::kHalf ? 1e3 : 1e4;
  const PackedBatch batch({1, 37, 0, 100});
  const at::Tensor x = (random.normal({batch.rows, 16}) * large).to(dtype).requires_grad_(true);
  const at::Tensor z = random.normal({4, 16}).to(dtype).requires_grad_(true);
  const auto expect_finite = [&](const std::string& name, torch::nn::Module& module,
                                 const std::vector<at::Tensor>& outputs) {
    for (const at::Tensor& output : outputs)
      EXPECT_TRUE(all_finite(output)) << name;
    std::vector<at::Tensor> inputs = module.parameters();
    inputs.push_back(x);
    for (const at::Tensor& gradient : torch::autograd::grad({random_projection(outputs, 4) * 1e-6}, inputs))
      EXPECT_TRUE(all_finite(gradient)) << name;
  };
  for (const Form form : {Form::paper, Form::released}) {
    for (const Order order : {Order::two_pass, Order::direct}) {
      if (dtype == at::kHalf && order == Order::direct)
        continue;  // its scores are float16 as in any plain formula
      SCOPED_TRACE(order == Order::two_pass ? "two_pass" : "direct");
      const DBAttentionOptions options = DBAttentionOptions(16, 4).d_p(4).d_in(8).form(form).order(order);
      DBAttention self(options);
      random.fill(*self);
      self->to(dtype);
      const AttentionOutput output = self->forward(x, batch.sequences, z);
      expect_finite("self " + to_string(form), *self, {output.y, output.z});
      DBACrossAttention cross(options);
      random.fill(*cross);
      cross->to(dtype);
      const at::Tensor c_2 = (random.normal({4, 4, 16}) * large).to(dtype);
      const CrossAttentionOutput crossed = cross->forward(x, batch.sequences, c_2);
      expect_finite("cross " + to_string(form), *cross, {crossed.y, crossed.c});
    }
  }
}

/// Rounding errors of sums over the width and the tokens grow like square roots; two products in a row, a softmax
/// between them.
TEST_P(Magnitudes, OperatorsAreAsExactAsTheirType) {
  Random random(153);
  const PackedBatch batch({1, 37, 0, 100});
  constexpr int64_t kWidth = 16;
  const auto [x, x_double] = twins(random.normal({batch.rows, kWidth}));
  const auto [each, each_double] = twins(random.normal({4, 6, kWidth}, 0.3));
  const auto [shared, shared_double] = twins(random.normal({6, kWidth}, 0.3));
  const auto [m, m_double] = twins(random.normal({4, 6, 5}));
  const auto [bias, bias_double] = twins(random.normal({6}));
  const double tolerance = eps * std::sqrt(static_cast<double>(kWidth));

  ops::ScoreRows rows, rows_double;
  rows.each = each;
  rows.shared = shared;
  rows.shared_bias = bias;
  rows.linear = 3;
  rows_double = rows;
  rows_double.each = each_double;
  rows_double.shared = shared_double;
  rows_double.shared_bias = bias_double;
  const ops::Summary got = ops::compress(x, batch.sequences, rows);
  const ops::Summary expected = plain_compress(x_double, batch, rows_double);
  expect_same_values({{"c", got.c}, {"r", got.r}}, {expected.c, expected.r}, tolerance);
  const at::Tensor y = ops::restore(x, batch.sequences, shared, bias, m, {}, 2);
  const at::Tensor expected_y = plain_restore(x_double, batch, shared_double, bias_double, m_double, {}, 2, false);
  expect_same_values({{"y", y}}, {expected_y}, tolerance);

  const auto gradients = torch::autograd::grad({random_projection({got.c, got.r, y}, 5)}, {x, each, shared, bias, m});
  const auto expected_gradients = torch::autograd::grad({random_projection({expected.c, expected.r, expected_y}, 5)},
                                                        {x_double, each_double, shared_double, bias_double, m_double});
  for (size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_EQ(gradients[i].scalar_type(), dtype);
    EXPECT_TRUE(close(gradients[i], expected_gradients[i], tolerance)) << i;
  }
}

TEST_P(Magnitudes, ModulesAreAsExactAsTheirType) {
  Random random(154);
  const PackedBatch batch({1, 37, 0, 100});
  for (const Form form : {Form::paper, Form::released}) {
    for (const Order order : {Order::two_pass, Order::direct}) {
      SCOPED_TRACE(to_string(form) + (order == Order::two_pass ? " two_pass" : " direct"));
      const DBAttentionOptions options =
          DBAttentionOptions(16, 2).d_p(4).d_in(8).form(form).order(order).z_update(ZUpdate::replace);
      DBAttention narrow(options), wide(options);
      random.fill(*narrow);
      narrow->to(dtype);
      wide->to(at::kDouble);
      {
        const torch::NoGradGuard no_grad;
        const std::vector<at::Tensor> from = narrow->parameters(), to = wide->parameters();
        for (size_t i = 0; i < to.size(); ++i)
          at::Tensor(to[i]).copy_(from[i]);
      }
      const auto [x, x_double] = twins(random.normal({batch.rows, 16}));
      const auto [z, z_double] = twins(random.normal({4, 16}));
      const AttentionOutput got = narrow->forward(x, batch.sequences, z);
      const AttentionOutput expected = wide->forward(x_double, batch.sequences, z_double);
      EXPECT_EQ(got.y.scalar_type(), dtype);
      const double tolerance = 2 * eps * std::sqrt(16.0);
      expect_same_values({{"y", got.y}, {"z", got.z}}, {expected.y, expected.z}, tolerance);
      const at::Tensor gradient = torch::autograd::grad({random_projection({got.y}, 6)}, {x})[0];
      const at::Tensor wanted = torch::autograd::grad({random_projection({expected.y}, 6)}, {x_double})[0];
      EXPECT_TRUE(close(gradient, wanted, tolerance)) << "gradient of x";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Magnitudes, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(MagnitudesOfDouble, DirectAndTwoPassAgreeForScoresOfTenThousand) {
  Random random(155);
  const PackedBatch batch({1, 37, 0, 100});
  const at::Tensor x = random.normal({batch.rows, 16});
  const at::Tensor z = random.normal({4, 16}) * 1e4;
  DBAttention module(DBAttentionOptions(16, 2).d_p(4).d_in(8).z_update(ZUpdate::replace));
  module->to(at::kDouble);
  random.fill(*module);
  const AttentionOutput two_pass = module->forward(x, batch.sequences, z);
  module->options.order(Order::direct);
  const AttentionOutput direct = module->forward(x, batch.sequences, z);
  // Scores of 1e4 are known to 1e4 ε, in two orders of summation over the width.
  constexpr double kTolerance = 1e4 * 16 * 2.3e-16;
  EXPECT_TRUE(close(two_pass.y, direct.y, kTolerance));
  EXPECT_TRUE(close(two_pass.z, direct.z, kTolerance));
}

}  // namespace
}  // namespace dba::test

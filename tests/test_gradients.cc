#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dba/nn/dba_attention.h"
#include "dba/nn/dba_cross_attention.h"
#include "dba/ops.h"
#include "support/attention_inputs.h"
#include "support/cases.h"
#include "support/comparison.h"

/// Backward against central differences, for every operator and both modules.
namespace dba::test {
namespace {

class Gradients : public ::testing::TestWithParam<LayerCase> {
 protected:
  const LayerCase& layer = GetParam();
  ops::Dropout dropout{layer.dropout, at::tensor({int64_t{17}, int64_t{4}}, at::kLong)};

  DBAttentionOptions options(Form form) const {
    return DBAttentionOptions(LayerCase::d, layer.heads)
        .d_p(layer.d_p)
        .d_in(LayerCase::d_in)
        .form(form)
        .normalise(layer.linear && form == Form::paper ? Normalise::linear : Normalise::softmax)
        .bias(layer.bias)
        .dropout(layer.dropout);
  }
};

TEST_P(Gradients, OfCompress) {
  const AttentionInputs given(layer, core_kinds()[0], kLengths, 51);
  std::vector<Named> inputs = {{"x", given.x}, {"shared", given.rows.shared}};
  if (given.rows.shared_bias.defined())
    inputs.push_back({"shared_bias", given.rows.shared_bias});
  ops::ScoreRows rows = given.rows;
  if (rows.each.defined()) {
    inputs.push_back({"each", rows.each});
    if (layer.bias) {
      rows.each_bias = Random(52).leaf({rows.each.size(0), rows.each.size(1)});
      inputs.push_back({"each_bias", rows.each_bias});
    }
  }
  expect_gradients(
      inputs,
      [&] {
        const ops::Summary summary = ops::compress(given.x, given.batch.sequences, rows, dropout);
        return random_projection({summary.c, summary.r, finite_part(summary.lse)}, 53);
      },
      54);
}

TEST_P(Gradients, OfRestore) {
  Random random(55);
  const PackedBatch batch(kLengths);
  const int64_t slots = layer.heads * layer.d_p;
  const auto sizes = [&](std::vector<int64_t> shared) {
    if (layer.per_sequence)
      shared.insert(shared.begin(), batch.count());
    return shared;
  };
  const at::Tensor x = random.leaf({batch.rows, LayerCase::d}), m = random.leaf({batch.count(), slots, 5});
  const at::Tensor rows = random.leaf(sizes({slots, LayerCase::d}), 0.3), bias = random.leaf(sizes({slots}), 0.5);
  const at::Tensor out_bias = random.leaf({5});
  expect_gradients(
      {{"x", x}, {"rows", rows}, {"bias", bias}, {"m", m}, {"out_bias", out_bias}},
      [&] {
        return random_projection(
            {ops::restore(x, batch.sequences, rows, bias, m, out_bias, layer.heads, layer.linear, dropout)}, 56);
      },
      57);
}

TEST_P(Gradients, OfCore) {
  for (const CoreKind& kind : core_kinds()) {
    SCOPED_TRACE(kind.name);
    const CoreInputs given(layer, kind, /*batch=*/2, 58);
    expect_gradients(
        given.named(),
        [&] {
          const ops::CoreResult result = ops::core(given.c, given.r, given.weights, layer.heads, dropout);
          return random_projection({result.m, result.c}, 59);
        },
        60);
  }
}

TEST_P(Gradients, OfFold) {
  Random random(61);
  const int64_t width = layer.heads * layer.head_width();
  const at::Tensor z = layer.per_sequence ? random.leaf({3, layer.d_p, width}) : random.leaf({layer.d_p, width});
  const at::Tensor weight = random.leaf({width, LayerCase::d}), bias = random.leaf({width});
  expect_gradients(
      {{"z", z}, {"weight", weight}, {"bias", bias}},
      [&] {
        const auto [rows, row_bias] = ops::fold(z, weight, bias, layer.heads, 0.7);
        // Squares, because fold is linear in each of its inputs.
        return random_projection({rows.square(), row_bias.square()}, 62);
      },
      63);
}

TEST_P(Gradients, OfAttention) {
  for (const CoreKind& kind : core_kinds()) {
    SCOPED_TRACE(kind.name);
    const AttentionInputs given(layer, kind, kShortLengths, 64);
    expect_gradients(
        given.named(),
        [&] {
          const ops::AttentionResult result = given.run();
          return random_projection({result.y, result.c}, 65);
        },
        66);
  }
}

TEST_P(Gradients, OfTheSelfAttentionModule) {
  for (const Form form : {Form::paper, Form::released}) {
    SCOPED_TRACE(to_string(form));
    Random random(67);
    DBAttention module(options(form));
    module->to(at::kDouble);
    random.fill(*module);
    const PackedBatch batch(kLengths);
    const at::Tensor x = random.leaf({batch.rows, LayerCase::d});
    const at::Tensor z = layer.per_sequence ? random.leaf({batch.count(), layer.d_p, LayerCase::d})
                                            : random.leaf({layer.d_p, LayerCase::d});
    expect_gradients(
        with_parameters({{"x", x}, {"z", z}}, *module),
        [&] {
          torch::manual_seed(5);
          const AttentionOutput output = module->forward(x, batch.sequences, z);
          return random_projection({output.y, output.z}, 68);
        },
        69, /*one_by_one=*/false);
  }
}

TEST_P(Gradients, OfTheCrossAttentionModule) {
  for (const Form form : {Form::paper, Form::released}) {
    SCOPED_TRACE(to_string(form));
    Random random(70);
    DBACrossAttention module(options(form));
    module->to(at::kDouble);
    random.fill(*module);
    const PackedBatch batch(kLengths);
    const at::Tensor x_1 = random.leaf({batch.rows, LayerCase::d});
    const at::Tensor c_2 = random.leaf({batch.count(), layer.d_p, LayerCase::d});
    expect_gradients(
        with_parameters({{"x_1", x_1}, {"c_2", c_2}}, *module),
        [&] {
          torch::manual_seed(5);
          const CrossAttentionOutput output = module->forward(x_1, batch.sequences, c_2);
          return random_projection({output.y, output.c}, 71);
        },
        72, /*one_by_one=*/false);
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, Gradients, ::testing::ValuesIn(layer_cases()), case_name);

void expect_no_double_backward(const at::Tensor& output, const at::Tensor& input) {
  expect_refusal(
      [&] {
        const at::Tensor gradient = torch::autograd::grad({output.square().sum()}, {input}, {}, /*retain_graph=*/true,
                                                          /*create_graph=*/true)[0];
        torch::autograd::grad({gradient.square().sum()}, {input});
      },
      {"double backward", "not supported"});
}

TEST(DoubleBackward, IsRefusedInASentence) {
  const LayerCase layer = layer_cases()[5];
  const AttentionInputs given(layer, core_kinds()[0], kShortLengths, 73);
  const Sequences& sequences = given.batch.sequences;
  const ops::Summary summary = ops::compress(given.x, sequences, given.rows);
  expect_no_double_backward(summary.c, given.x);
  expect_no_double_backward(summary.c, given.rows.shared);
  const ops::CoreResult core = ops::core(summary.c.detach(), summary.r.detach(), given.core.weights, layer.heads);
  const at::Tensor m = core.m.detach().requires_grad_(true);
  const at::Tensor y =
      ops::restore(given.x, sequences, given.restore_rows, given.restore_bias, m, given.out_bias, layer.heads);
  expect_no_double_backward(y, given.x);
  expect_no_double_backward(y, m);
  expect_no_double_backward(given.run().y, given.x);
}

TEST(DoubleBackward, WorksInDirectOrder) {
  Random random(74);
  DBAttention module(DBAttentionOptions(8, 2).d_p(3).d_in(4).z_update(ZUpdate::replace).order(Order::direct));
  module->to(at::kDouble);
  random.fill(*module);
  const PackedBatch batch({5, 0, 3});
  const at::Tensor x = random.leaf({batch.rows, 8}), z = random.leaf({3, 8});
  expect_gradients(
      {{"x", x}, {"z", z}},
      [&] {
        const torch::AutoGradMode with_grad(true);
        const AttentionOutput output = module->forward(x, batch.sequences, z);
        const at::Tensor gradient = torch::autograd::grad({output.y.square().sum()}, {x}, {}, true, true)[0];
        return random_projection({gradient}, 75);
      },
      76);
}

}  // namespace
}  // namespace dba::test

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dba/nn/dba_cross_attention.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "support/module_weights.h"

/// DBACrossAttention and its Compressor against the equations, in both forms.
namespace dba::test {
namespace {

constexpr uint64_t kSeed = 77;

class CrossAttention : public ::testing::TestWithParam<LayerCase> {
 protected:
  const LayerCase& layer = GetParam();
  Random random{101};
  PackedBatch batch{kLengths};
  at::Tensor x_1 = random.leaf({batch.rows, LayerCase::d});
  at::Tensor c_2 = random.leaf({batch.count(), layer.d_p, LayerCase::d});

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

TEST_P(CrossAttention, EqualsTheEquationsOfThePaper) {
  for (const Order order : {Order::two_pass, Order::direct}) {
    for (const bool compress_width : {true, false}) {
      SCOPED_TRACE(order == Order::two_pass ? "two_pass" : "direct");
      SCOPED_TRACE(compress_width ? "with R" : "R = I");
      DBACrossAttention module(options(Form::paper).order(order).compress_width(compress_width));
      module->to(at::kDouble);
      random.fill(*module);
      const ops::Dropout dropout = key_of_seed(layer.dropout, kSeed);
      const CrossAttentionOutput output = module->forward(x_1, batch.sequences, c_2);
      std::vector<at::Tensor> y, c;
      for (int64_t b = 0; b < batch.count(); ++b) {
        const at::Tensor tokens = batch.rows_of(x_1, b);
        const PaperResult part =
            paper_cross_attention(tokens, c_2[b], paper_weights(*module), layer.heads, layer.linear,
                                  paper_cross_masks(dropout, b, tokens.size(0), layer.heads, layer.d_p));
        y.push_back(part.y);
        c.push_back(part.c);
      }
      expect_same_function({{"y", output.y}, {"c", output.c}}, {at::cat(y), at::stack(c)},
                           with_parameters({{"x_1", x_1}, {"c_2", c_2}}, *module));
    }
  }
}

TEST_P(CrossAttention, EqualsTheReleasedEquations) {
  for (const Order order : {Order::two_pass, Order::direct}) {
    SCOPED_TRACE(order == Order::two_pass ? "two_pass" : "direct");
    DBACrossAttention module(options(Form::released).order(order));
    module->to(at::kDouble);
    random.fill(*module);
    const ops::Dropout dropout = key_of_seed(layer.dropout, kSeed);
    const CrossAttentionOutput output = module->forward(x_1, batch.sequences, c_2);
    std::vector<at::Tensor> y, c;
    for (int64_t b = 0; b < batch.count(); ++b) {
      const at::Tensor tokens = batch.rows_of(x_1, b);
      const ReleasedResult part =
          released_cross_attention(tokens, c_2[b], released_weights(*module), layer.heads,
                                   released_masks(dropout, b, tokens.size(0), layer.heads, layer.d_p));
      y.push_back(part.y);
      c.push_back(part.c);
    }
    expect_same_function({{"y", output.y}, {"c", output.c}}, {at::cat(y), at::stack(c)},
                         with_parameters({{"x_1", x_1}, {"c_2", c_2}}, *module));
  }
}

TEST_P(CrossAttention, CompressorEqualsItsEquations) {
  for (const Form form : {Form::paper, Form::released}) {
    SCOPED_TRACE(to_string(form));
    Compressor module(options(form));
    module->to(at::kDouble);
    random.fill(*module);
    const ops::Dropout dropout = key_of_seed(layer.dropout, kSeed);
    const at::Tensor c = module->forward(x_1, batch.sequences);
    ReleasedWeights weights;
    if (form == Form::released) {
      weights.p_q = module->p_q->weight;
      weights.p_q_bias = module->p_q->bias;
      weights.p_k = module->p_k->weight;
      weights.p_k_bias = module->p_k->bias;
      weights.p_v = module->p_v->weight;
      weights.p_v_bias = module->p_v->bias;
    }
    std::vector<at::Tensor> expected;
    for (int64_t b = 0; b < batch.count(); ++b) {
      const at::Tensor tokens = batch.rows_of(x_1, b);
      const at::Tensor mask = layer_masks(dropout, b, tokens.size(0), layer.heads, layer.d_p, /*groups=*/1).compress[0];
      expected.push_back(
          form == Form::paper
              ? paper_compressor(tokens, module->slots->z, module->w_q->weight, module->w_q->bias, layer.heads, mask)
              : released_compressor(tokens, module->slots->z, weights, layer.heads, mask));
    }
    expect_same_function({{"c", c}}, {at::stack(expected)}, with_parameters({{"x", x_1}}, *module));
  }
}

TEST_P(CrossAttention, ShowsItsWeights) {
  DBACrossAttention module(options(Form::paper));
  module->to(at::kDouble);
  random.fill(*module);
  module->eval();
  const CrossAttentionOutput output = module->forward(x_1, batch.sequences, c_2, /*need_weights=*/true);
  ASSERT_TRUE(output.weights.has_value());
  for (int64_t b = 0; b < batch.count(); ++b) {
    const PaperResult part =
        paper_cross_attention(batch.rows_of(x_1, b), c_2[b], paper_weights(*module), layer.heads, layer.linear);
    expect_weights(output.weights->w_r[b], part.w_r, "W_r");
    expect_weights(output.weights->w_r_prime[b], part.w_r_prime, "W_r'");
    if (batch.lengths[static_cast<size_t>(b)] > 0)
      expect_weights(output.weights->p[b], part.p, "P'");
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, CrossAttention, ::testing::ValuesIn(layer_cases()), case_name);

TEST(CrossAttentionModule, StreamsHaveTheirOwnLengths) {
  Random random(102);
  const DBAttentionOptions options = DBAttentionOptions(8, 2).d_p(3).d_in(4);
  Compressor compressor(options);
  DBACrossAttention module(options);
  compressor->to(at::kDouble);
  module->to(at::kDouble);
  random.fill(*compressor);
  random.fill(*module);
  const PackedBatch questions({4, 0, 7}), images({20, 5, 0});
  const at::Tensor x_1 = random.leaf({questions.rows, 8}), x_2 = random.leaf({images.rows, 8});
  const CrossAttentionOutput output =
      module->forward(x_1, questions.sequences, compressor->forward(x_2, images.sequences));
  std::vector<at::Tensor> y, c;
  for (int64_t b = 0; b < 3; ++b) {
    const at::Tensor c_2 = paper_compressor(images.rows_of(x_2, b), compressor->slots->z, compressor->w_q->weight,
                                            compressor->w_q->bias, 2);
    const PaperResult part =
        paper_cross_attention(questions.rows_of(x_1, b), c_2, paper_weights(*module), 2, /*linear=*/false);
    y.push_back(part.y);
    c.push_back(part.c);
  }
  expect_same_function({{"y", output.y}, {"c", output.c}}, {at::cat(y), at::stack(c)},
                       with_parameters(with_parameters({{"x_1", x_1}, {"x_2", x_2}}, *module), *compressor));
}

}  // namespace
}  // namespace dba::test

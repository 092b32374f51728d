#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dba/nn/co_encoder.h"
#include "dba/nn/initialise.h"
#include "support/cases.h"
#include "support/comparison.h"
#include "support/layouts.h"
#include "support/paper_transcription.h"
#include "support/released_transcription.h"

namespace dba::test {
namespace {

constexpr int64_t kStreamWidth = 8, kHeads = 2, kSlots = 3;
/// The streams have lengths of their own; either of a pair may be empty, and both.
const std::vector<int64_t> kLengths1 = {5, 0, 17, 1, 0};
const std::vector<int64_t> kLengths2 = {2, 6, 0, 9, 0};

struct CoCase {
  Form form;
  int64_t depth;
  bool norm_first;

  std::string name() const {
    return to_string(form) + "_depth" + std::to_string(depth) + (norm_first ? "_pre" : "_post");
  }
};

std::ostream& operator<<(std::ostream& stream, const CoCase& c) {
  return stream << c.name();
}

std::vector<CoCase> co_cases() {
  std::vector<CoCase> cases;
  for (const Form form : {Form::paper, Form::released})
    for (const int64_t depth : {1, 3})
      for (const bool norm_first : {false, true})
        cases.push_back({form, depth, norm_first});
  return cases;
}

CoEncoder make_co_encoder(const CoCase& c) {
  const auto attention = DBAttentionOptions(kStreamWidth, kHeads).d_p(kSlots).d_in(6).form(c.form);
  const auto layer =
      EncoderLayerOptions(kStreamWidth, kHeads, 12).attention_options(attention).norm_first(c.norm_first);
  CoEncoder co_encoder(CoEncoderOptions(layer, c.depth));
  co_encoder->to(at::kDouble);
  Random(21).fill(*co_encoder);
  return co_encoder;
}

struct Inputs {
  PackedBatch batch_1{kLengths1}, batch_2{kLengths2};
  at::Tensor x_1 = Random(22).leaf({batch_1.rows, kStreamWidth});
  at::Tensor x_2 = Random(23).leaf({batch_2.rows, kStreamWidth});

  StreamPair run(CoEncoder& co_encoder) const {
    return co_encoder(x_1, batch_1.sequences, x_2, batch_2.sequences);
  }
  std::vector<Named> named(const CoEncoder& co_encoder) const {
    return with_parameters({{"x_1", x_1}, {"x_2", x_2}}, *co_encoder);
  }
};

std::vector<Named> named(const StreamPair& streams) {
  return {{"x_1", streams.x_1}, {"x_2", streams.x_2}, {"c_1", streams.c_1}, {"c_2", streams.c_2}};
}

std::vector<at::Tensor> tensors(const StreamPair& streams) {
  return {streams.x_1, streams.x_2, streams.c_1, streams.c_2};
}

at::Tensor compress_by_hand(Compressor& compressor, Form form, const at::Tensor& x) {
  const at::Tensor z = compressor->slots->z;
  if (form == Form::paper)
    return paper_compressor(x, z, compressor->w_q->weight, compressor->w_q->bias, kHeads);
  ReleasedWeights weights;
  weights.p_q = compressor->p_q->weight, weights.p_q_bias = compressor->p_q->bias;
  weights.p_k = compressor->p_k->weight, weights.p_k_bias = compressor->p_k->bias;
  weights.p_v = compressor->p_v->weight, weights.p_v_bias = compressor->p_v->bias;
  return released_compressor(x, z, weights, kHeads);
}

/// y and C of one sequence.
std::pair<at::Tensor, at::Tensor> attend_by_hand(DBACrossAttention& attention, Form form, const at::Tensor& x,
                                                 const at::Tensor& c_other) {
  if (form == Form::paper) {
    PaperWeights weights;
    weights.w_q = attention->w_q->weight, weights.b_q = attention->w_q->bias;
    weights.w_k = attention->w_k->weight, weights.b_k = attention->w_k->bias;
    weights.w_v = attention->w_v->weight, weights.b_v = attention->w_v->bias;
    weights.w_o = attention->w_o->weight, weights.b_o = attention->w_o->bias;
    weights.w_z = attention->w_z->weight, weights.b_z = attention->w_z->bias;
    weights.f_r = attention->f_r->weight, weights.f_r_bias = attention->f_r->bias;
    weights.r = attention->r;
    const PaperResult result = paper_cross_attention(x, c_other, weights, kHeads, /*linear=*/false);
    return {result.y, result.c};
  }
  ReleasedWeights weights;
  weights.p_q = attention->p_q->weight, weights.p_q_bias = attention->p_q->bias;
  weights.p_k = attention->p_k->weight, weights.p_k_bias = attention->p_k->bias;
  weights.p_v = attention->p_v->weight, weights.p_v_bias = attention->p_v->bias;
  weights.w_q = attention->w_q->weight, weights.b_q = attention->w_q->bias;
  weights.w_k = attention->w_k->weight, weights.b_k = attention->w_k->bias;
  weights.w_v = attention->w_v->weight, weights.b_v = attention->w_v->bias;
  weights.w_o = attention->w_o->weight, weights.b_o = attention->w_o->bias;
  weights.w_u = attention->w_u->weight, weights.b_u = attention->w_u->bias;
  weights.norm = attention->norm->weight, weights.norm_bias = attention->norm->bias;
  const ReleasedResult result = released_cross_attention(x, c_other, weights, kHeads);
  return {result.y, result.c};
}

at::Tensor norm_by_hand(const TokenNorm& norm, const at::Tensor& x) {
  return layer_norm_as_defined(x, norm->weight, norm->bias);
}

/// Attention and feed-forward network of one stream; returns the new tokens and C.
std::pair<at::Tensor, at::Tensor> stream_by_hand(DBACrossAttention& attention, ResidualBlock& block, const CoCase& c,
                                                 const at::Tensor& x, const at::Tensor& c_other) {
  const auto feed_forward = [&](const at::Tensor& v) {
    const at::Tensor hidden = at::gelu(v.matmul(block->linear_1->weight.t()) + block->linear_1->bias);
    return hidden.matmul(block->linear_2->weight.t()) + block->linear_2->bias;
  };
  if (c.norm_first) {
    const auto [y, own] = attend_by_hand(attention, c.form, norm_by_hand(block->attention_norm, x), c_other);
    const at::Tensor middle = x + y;
    return {middle + feed_forward(norm_by_hand(block->ffn_norm, middle)), own};
  }
  const auto [y, own] = attend_by_hand(attention, c.form, x, c_other);
  const at::Tensor middle = norm_by_hand(block->attention_norm, x + y);
  return {norm_by_hand(block->ffn_norm, middle + feed_forward(middle)), own};
}

/// One pair of sequences through the whole stack.
StreamPair stack_by_hand(CoEncoder& co_encoder, const CoCase& c, const at::Tensor& x_1, const at::Tensor& x_2) {
  StreamPair now{x_1, x_2, compress_by_hand(co_encoder->compressor_1, c.form, x_1),
                 compress_by_hand(co_encoder->compressor_2, c.form, x_2)};
  for (int64_t index = 0; index < c.depth; ++index) {
    CoEncoderLayer layer = co_encoder->layer(index);
    const auto [next_1, c_1] = stream_by_hand(layer->attention_1, layer->block_1, c, now.x_1, now.c_2);
    const auto [next_2, c_2] = stream_by_hand(layer->attention_2, layer->block_2, c, now.x_2, now.c_1);
    now = {next_1, next_2, c_1, c_2};
  }
  if (c.norm_first) {
    now.x_1 = norm_by_hand(co_encoder->norm_1, now.x_1);
    now.x_2 = norm_by_hand(co_encoder->norm_2, now.x_2);
  }
  return now;
}

class CoEncoderTest : public ::testing::TestWithParam<CoCase> {};

TEST_P(CoEncoderTest, IsItsDefinitionPairByPair) {
  CoEncoder co_encoder = make_co_encoder(GetParam());
  const Inputs inputs;
  std::vector<std::vector<at::Tensor>> parts(4);
  for (int64_t b = 0; b < inputs.batch_1.count(); ++b) {
    const std::vector<at::Tensor> pair = tensors(stack_by_hand(
        co_encoder, GetParam(), inputs.batch_1.rows_of(inputs.x_1, b), inputs.batch_2.rows_of(inputs.x_2, b)));
    for (size_t i = 0; i < parts.size(); ++i)
      parts[i].push_back(pair[i]);
  }
  expect_same_function(named(inputs.run(co_encoder)),
                       {at::cat(parts[0]), at::cat(parts[1]), at::stack(parts[2]), at::stack(parts[3])},
                       inputs.named(co_encoder));
}

TEST_P(CoEncoderTest, PaddingChangesNothingWhateverItHolds) {
  CoEncoder co_encoder = make_co_encoder(GetParam());
  const Inputs inputs;
  StreamPair got = co_encoder(padded(inputs.x_1, inputs.batch_1, 18, kNaN), padded_sequences(inputs.batch_1, 18),
                              padded(inputs.x_2, inputs.batch_2, 9, kNaN), padded_sequences(inputs.batch_2, 9));
  EXPECT_TRUE(identical(got.x_1[1], at::zeros({18, kStreamWidth}, at::kDouble)));
  EXPECT_TRUE(identical(got.x_2[0].slice(0, 2), at::zeros({7, kStreamWidth}, at::kDouble)));
  got.x_1 = unpadded(got.x_1, inputs.batch_1);
  got.x_2 = unpadded(got.x_2, inputs.batch_2);
  expect_same_function(named(got), tensors(inputs.run(co_encoder)), inputs.named(co_encoder));
}

TEST_P(CoEncoderTest, GivesEveryParameterAGradient) {
  CoEncoder co_encoder = make_co_encoder(GetParam());
  const StreamPair streams = Inputs().run(co_encoder);
  // The tokens alone: nothing may depend on somebody using the last C as well.
  random_projection({streams.x_1, streams.x_2}, 24).backward();
  for (const auto& parameter : co_encoder->named_parameters()) {
    ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
    EXPECT_TRUE(all_finite(parameter.value().grad())) << parameter.key();
  }
}

TEST_P(CoEncoderTest, LivesWithAStreamWithoutASingleRow) {
  CoEncoder co_encoder = make_co_encoder(GetParam());
  const Inputs inputs;
  const PackedBatch nothing({0, 0, 0, 0, 0});
  const at::Tensor x_2 = at::zeros({0, kStreamWidth}, at::kDouble);
  const StreamPair streams = co_encoder(inputs.x_1, inputs.batch_1.sequences, x_2, nothing.sequences);
  EXPECT_EQ(streams.x_2.sizes(), at::IntArrayRef({0, kStreamWidth}));
  EXPECT_TRUE(identical(streams.c_2, at::zeros({5, kSlots, kStreamWidth}, at::kDouble)));
  const at::Tensor empty = x_2.slice(0, 0, 0);
  std::vector<at::Tensor> expected;
  for (int64_t b = 0; b < inputs.batch_1.count(); ++b)
    expected.push_back(stack_by_hand(co_encoder, GetParam(), inputs.batch_1.rows_of(inputs.x_1, b), empty).x_1);
  EXPECT_TRUE(close(streams.x_1, at::cat(expected)));
}

TEST_P(CoEncoderTest, CloneComputesTheSame) {
  CoEncoder co_encoder = make_co_encoder(GetParam());
  CoEncoder copy(std::dynamic_pointer_cast<CoEncoderImpl>(co_encoder->clone()));
  const Inputs inputs;
  const std::vector<at::Tensor> expected = tensors(inputs.run(co_encoder));
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : co_encoder->parameters())
      parameter.zero_();
  }
  const std::vector<at::Tensor> got = tensors(inputs.run(copy));
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(identical(got[i], expected[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Stacks, CoEncoderTest, ::testing::ValuesIn(co_cases()),
                         [](const auto& info) { return info.param.name(); });

TEST(CoEncoderNorms, OfABatchSeeTheRealRowsOfTheirStream) {
  const auto layer = EncoderLayerOptions(kStreamWidth, kHeads, 12).norm(NormKind::batch).norm_first(true);
  CoEncoder co_encoder(CoEncoderOptions(layer, 2));
  co_encoder->to(at::kDouble);
  Random(25).fill(*co_encoder);
  const Inputs inputs;
  StreamPair got = co_encoder(padded(inputs.x_1, inputs.batch_1, 18, kNaN), padded_sequences(inputs.batch_1, 18),
                              padded(inputs.x_2, inputs.batch_2, 9, kNaN), padded_sequences(inputs.batch_2, 9));
  got.x_1 = unpadded(got.x_1, inputs.batch_1);
  got.x_2 = unpadded(got.x_2, inputs.batch_2);
  expect_same_function(named(got), tensors(inputs.run(co_encoder)), inputs.named(co_encoder));
  EXPECT_FALSE(at::allclose(co_encoder->norm_1->running_mean, co_encoder->norm_2->running_mean));
}

TEST(CoEncoderRefuses, StreamsThatDoNotFit) {
  CoEncoder co_encoder(CoEncoderOptions(EncoderLayerOptions(kStreamWidth, kHeads, 12), 1));
  const auto two = Sequences::dense(2, 4, at::kCPU), three = Sequences::dense(3, 4, at::kCPU);
  expect_refusal(
      [&] {
        co_encoder(at::zeros({8, kStreamWidth}), two, at::zeros({12, kStreamWidth}), three);
      },
      {"CoEncoder::forward", "number of sequences", "2", "3"});
  expect_refusal(
      [&] {
        co_encoder(at::zeros({8, kStreamWidth}), two, at::zeros({8, 7}), two);
      },
      {"CoEncoder::forward", "x_2", "(N, 8)", "7"});
}

}  // namespace
}  // namespace dba::test

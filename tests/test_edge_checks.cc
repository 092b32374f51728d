#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <cmath>
#include <functional>

#include "dba/nn/dba_attention.h"
#include "dba/nn/dba_cross_attention.h"
#include "dba/nn/softmax_attention.h"
#include "dba/ops.h"
#include "support/cases.h"
#include "support/comparison.h"

/// What the library refuses, in which words, and what its operators look like from outside.
namespace dba::test {
namespace {

at::Tensor doubles(at::IntArrayRef sizes) {
  return at::ones(sizes, at::kDouble);
}

ops::ScoreRows shared_rows(const at::Tensor& rows) {
  ops::ScoreRows made;
  made.shared = rows;
  return made;
}

const Sequences& six_rows() {
  static const Sequences sequences = Sequences::packed(longs({0, 2, 6}), 6);
  return sequences;
}

TEST(SequenceChecks, PackedBounds) {
  const auto packed = [](const at::Tensor& bounds, int64_t rows) { return [=] { Sequences::packed(bounds, rows); }; };
  expect_refusal(packed(longs({0, 4, 3, 6}), 6), {"packed", "cu_seqlens", "must", "got", "3"});
  expect_refusal(packed(longs({-1, 4, 6}), 6), {"packed", "cu_seqlens", "must", "got", "-1"});
  expect_refusal(packed(longs({0, 4, 9}), 6), {"packed", "cu_seqlens", "must", "got", "9", "6"});
  expect_refusal(packed(longs({0, 4, 6}).reshape({1, 3}), 6), {"packed", "cu_seqlens", "must", "got", "(1, 3)"});
  expect_refusal(packed(doubles({3}), 6), {"packed", "cu_seqlens", "must", "got", "double"});
  expect_refusal(packed(longs({}), 6), {"packed", "cu_seqlens", "must", "got"});
}

TEST(SequenceChecks, Lengths) {
  const auto from = [](const at::Tensor& lengths, int64_t n) { return [=] { Sequences::from_lengths(lengths, n); }; };
  expect_refusal(from(longs({3, 9}), 8), {"from_lengths", "lengths", "must", "got", "9", "8"});
  expect_refusal(from(longs({3, -2}), 8), {"from_lengths", "lengths", "must", "got", "-2"});
  expect_refusal(from(longs({3, 2}).reshape({2, 1}), 8), {"from_lengths", "lengths", "must", "got", "(2, 1)"});
  expect_refusal(from(doubles({2}), 8), {"from_lengths", "lengths", "must", "got", "double"});
  expect_refusal(from(longs({0}), -1), {"from_lengths", "length", "must", "got", "-1"});
}

TEST(SequenceChecks, Masks) {
  const at::Tensor broken = longs({1, 0, 1, 1}).reshape({1, 4}).to(at::kBool);
  expect_refusal([&] { Sequences::from_mask(broken); }, {"from_mask", "mask", "must", "contiguous"});
  expect_refusal([&] { Sequences::from_mask(broken[0]); }, {"from_mask", "mask", "must", "got", "(4)"});
  expect_refusal([&] { Sequences::from_mask(doubles({2, 3})); }, {"from_mask", "mask", "must", "got", "double"});
}

TEST(SequenceChecks, Ranges) {
  const auto ranges = [](std::vector<int64_t> begin, std::vector<int64_t> end, int64_t rows) {
    return [=] { Sequences::ranges(longs(begin), longs(end), rows); };
  };
  expect_refusal(ranges({0, 3}, {4, 6}, 6), {"ranges", "begin", "must", "got", "3"});
  expect_refusal(ranges({0, 5}, {4, 4}, 6), {"ranges", "end", "must", "got", "4"});
  expect_refusal(ranges({0, 4}, {4, 7}, 6), {"ranges", "end", "must", "got", "7", "6"});
  expect_refusal(ranges({-2, 4}, {4, 6}, 6), {"ranges", "begin", "must", "got", "-2"});
  expect_refusal(ranges({0, 4}, {4}, 6), {"ranges", "end", "must", "got"});
  expect_refusal([] { Sequences::dense(-1, 3, at::kCPU); }, {"dense", "batch", "must", "got", "-1"});
}

TEST(CompressChecks, RanksWidthsAndCounts) {
  const at::Tensor x = doubles({6, 4});
  const auto compress = [&](const at::Tensor& tokens, const ops::ScoreRows& rows) {
    return [=] { ops::compress(tokens, six_rows(), rows); };
  };
  expect_refusal(compress(doubles({1, 6, 4}), shared_rows(doubles({3, 4}))),
                 {"dba::compress", "x must", "got", "(1, 6, 4)"});
  expect_refusal(compress(doubles({7, 4}), shared_rows(doubles({3, 4}))), {"dba::compress", "x must", "6", "got", "7"});
  expect_refusal(compress(x, shared_rows(doubles({3, 5}))), {"dba::compress", "shared", "must", "4", "got", "5"});
  expect_refusal(compress(x, shared_rows(doubles({3, 1, 4}))), {"dba::compress", "shared", "must", "got", "(3, 1, 4)"});
  expect_refusal(compress(x, ops::ScoreRows{}), {"dba::compress", "each", "shared", "must", "got"});
  ops::ScoreRows rows;
  rows.each = doubles({3, 2, 4});
  expect_refusal(compress(x, rows), {"dba::compress", "each", "must", "2", "got", "3"});
  rows.each = doubles({2, 2, 4});
  rows.each_bias = doubles({2, 3});
  expect_refusal(compress(x, rows), {"dba::compress", "each_bias", "must", "got", "(2, 3)"});
  rows = shared_rows(doubles({3, 4}));
  rows.shared_bias = doubles({4});
  expect_refusal(compress(x, rows), {"dba::compress", "shared_bias", "must", "got", "(4)"});
  for (const int64_t linear : {-1, 4}) {
    rows = shared_rows(doubles({3, 4}));
    rows.linear = linear;
    expect_refusal(compress(x, rows), {"dba::compress", "linear", "must", "3", "got", std::to_string(linear)});
  }
  expect_refusal(compress({}, shared_rows(doubles({3, 4}))), {"dba::compress", "x must", "got"});
  expect_refusal(compress(x.to(at::kLong), shared_rows(doubles({3, 4}))), {"dba::compress", "x must", "got", "long"});
}

TEST(CompressChecks, DtypesAndDevices) {
  const auto compress = [](const at::Tensor& tokens, const at::Tensor& rows) {
    return [=] { ops::compress(tokens, six_rows(), shared_rows(rows)); };
  };
  expect_refusal(compress(doubles({6, 4}).to(at::kFloat), doubles({3, 4})),
                 {"dba::compress", "shared", "must", "float", "got", "double"});
  expect_refusal(compress(doubles({6, 4}), doubles({3, 4}).to(at::kMeta)),
                 {"dba::compress", "shared", "must", "cpu", "got", "meta"});
  expect_refusal(
      [] {
        ops::compress(doubles({6, 4}).to(at::kMeta), six_rows(), shared_rows(doubles({3, 4}).to(at::kMeta)));
      },
      {"dba::compress", "must", "meta", "got", "cpu"});
}

TEST(DropoutChecks, RatesAndKeys) {
  const at::Tensor x = doubles({6, 4});
  const at::Tensor key = longs({1, 2});
  for (const double p : {static_cast<double>(NAN), -0.1, 1.0, 1.5, static_cast<double>(INFINITY)}) {
    SCOPED_TRACE(p);
    const std::string value = std::isnan(p)   ? "nan"
                              : std::isinf(p) ? "inf"
                              : p == 1.0      ? "1"
                                              : std::to_string(p).substr(0, 3);
    const ops::Dropout dropout{p, key};
    expect_refusal([&] { ops::compress(x, six_rows(), shared_rows(x), dropout); },
                   {"dba::compress", "dropout", "must", "got", value});
    expect_refusal(
        [&] {
          ops::restore(x, six_rows(), doubles({2, 4}), {}, doubles({2, 2, 3}), {}, 1, false, dropout);
        },
        {"dba::restore", "dropout", "must", "got", value});
    expect_refusal([&] { DBAttention(DBAttentionOptions(8, 2).dropout(p)); },
                   {"dba::DBAttention", "dropout", "must", "got", value});
    expect_refusal([&] { DBAttention(DBAttentionOptions(8, 2).z_dropout(p)); },
                   {"dba::DBAttention", "z_dropout", "must", "got", value});
    expect_refusal([&] { SoftmaxAttention(SoftmaxAttentionOptions(8, 2).dropout(p)); },
                   {"dba::SoftmaxAttention", "dropout", "must", "got", value});
  }
  expect_refusal([&] { ops::compress(x, six_rows(), shared_rows(x), {0.5, {}}); }, {"dba::compress", "rng", "must"});
  expect_refusal(
      [&] {
        ops::compress(x, six_rows(), shared_rows(x), {0.5, longs({1, 2, 3})});
      },
      {"dba::compress", "rng", "must", "got", "(3)"});
  expect_refusal(
      [&] {
        ops::compress(x, six_rows(), shared_rows(x), {0.5, doubles({2})});
      },
      {"dba::compress", "rng", "must", "got", "double"});
}

TEST(RestoreChecks, Shapes) {
  const at::Tensor x = doubles({6, 4}), rows = doubles({4, 4}), m = doubles({2, 4, 3});
  const auto restore = [&](const at::Tensor& tokens, const at::Tensor& given_rows, const at::Tensor& bias,
                           const at::Tensor& mixed, const at::Tensor& out_bias, int64_t heads) {
    return [=] { ops::restore(tokens, six_rows(), given_rows, bias, mixed, out_bias, heads); };
  };
  EXPECT_NO_THROW(restore(x, rows, {}, m, {}, 2)());
  expect_refusal(restore(doubles({6}), rows, {}, m, {}, 2), {"dba::restore", "x must", "got", "(6)"});
  expect_refusal(restore(doubles({5, 4}), rows, {}, m, {}, 2), {"dba::restore", "x must", "6", "got", "5"});
  expect_refusal(restore(x, doubles({4, 5}), {}, m, {}, 2), {"dba::restore", "rows must", "4", "got", "5"});
  expect_refusal(restore(x, doubles({3, 4, 4}), {}, m, {}, 2), {"dba::restore", "rows must", "2", "got", "3"});
  expect_refusal(restore(x, rows, doubles({5}), m, {}, 2), {"dba::restore", "bias must", "got", "(5)"});
  expect_refusal(restore(x, rows, {}, doubles({2, 5, 3}), {}, 2), {"dba::restore", "m must", "got", "(2, 5, 3)"});
  expect_refusal(restore(x, rows, {}, doubles({3, 4, 3}), {}, 2), {"dba::restore", "m must", "2", "got", "3"});
  expect_refusal(restore(x, rows, {}, m, doubles({4}), 2), {"dba::restore", "out_bias must", "got", "(4)"});
  expect_refusal(restore(x, rows, {}, m, {}, 3), {"dba::restore", "must", "4", "got", "3"});
  expect_refusal(restore(x, rows, {}, m, {}, 0), {"dba::restore", "heads must", "got", "0"});
  expect_refusal(restore(x.to(at::kFloat), rows, {}, m, {}, 2), {"dba::restore", "must", "float", "got", "double"});
}

TEST(CoreChecks, Shapes) {
  ops::CoreWeights weights;
  weights.query_weight = weights.key_weight = weights.value_weight = weights.out_weight = doubles({4, 4});
  const auto core = [&](const at::Tensor& c, const at::Tensor& r, const ops::CoreWeights& given, int64_t heads) {
    return [=] { ops::core(c, r, given, heads); };
  };
  const at::Tensor c = doubles({2, 12, 4}), r = doubles({2, 12});
  EXPECT_NO_THROW(core(c, r, weights, 2)());
  expect_refusal(core(doubles({12, 4}), r, weights, 2), {"dba::core", "c must", "got", "(12, 4)"});
  expect_refusal(core(c, doubles({2, 11}), weights, 2), {"dba::core", "r must", "got", "(2, 11)"});
  expect_refusal(core(doubles({2, 10, 4}), doubles({2, 10}), weights, 2), {"dba::core", "c must", "got", "10"});
  expect_refusal(core(c, r, weights, 3), {"dba::core", "must", "3", "got"});
  ops::CoreWeights wrong = weights;
  wrong.key_weight = doubles({4, 5});
  expect_refusal(core(c, r, wrong, 2), {"dba::core", "key_weight must", "got", "(4, 5)"});
  wrong = weights;
  wrong.value_bias = doubles({3});
  expect_refusal(core(c, r, wrong, 2), {"dba::core", "value_bias must", "got", "(3)"});
  wrong = weights;
  wrong.width = doubles({2, 3, 5});
  expect_refusal(core(c, r, wrong, 2), {"dba::core", "width must", "got", "(2, 3, 5)"});
  wrong = weights;
  wrong.other = doubles({2, 5, 4});
  expect_refusal(core(doubles({2, 4, 4}), doubles({2, 4}), wrong, 2), {"dba::core", "other must", "got", "(2, 5, 4)"});
  wrong = weights;
  wrong.query_weight = at::Tensor();
  expect_refusal(core(c, r, wrong, 2), {"dba::core", "query_weight must"});
}

TEST(CoreChecks, DtypesAndDevices) {
  ops::CoreWeights weights;
  weights.query_weight = weights.key_weight = weights.value_weight = weights.out_weight = doubles({4, 4});
  const auto core = [&](const at::Tensor& r) { return [=] { ops::core(doubles({2, 12, 4}), r, weights, 2); }; };
  expect_refusal(core(doubles({2, 12}).to(at::kMeta)), {"dba::core", "r must", "of c, cpu", "got", "meta"});
  expect_refusal(core(doubles({2, 12}).to(at::kFloat)), {"dba::core", "r must", "double", "got", "float"});
}

TEST(DropoutChecks, OperandsOfTheMask) {
  const auto mask = [](const at::Tensor& rng, double p, const at::Tensor& sequence, const at::Tensor& first) {
    return [=] {
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("dba::dropout_mask", "")
          .typed<at::Tensor(const at::Tensor&, double, int64_t, const at::Tensor&, const at::Tensor&, int64_t, int64_t,
                            at::ScalarType)>()
          .call(rng, p, ops::kSiteCore, sequence, first, 5, 4, at::kDouble);
    };
  };
  const at::Tensor key = longs({1, 2}), two = longs({0, 3});
  EXPECT_NO_THROW(mask(key, 0.5, two, two)());
  for (const double p : {0.0, 0.5}) {
    SCOPED_TRACE(p);
    expect_refusal(mask(key.to(at::kMeta), p, two, two),
                   {"dba::dropout_mask", "rng must", "sequence, cpu", "got", "meta"});
    expect_refusal(mask(key, p, two, two.to(at::kMeta)),
                   {"dba::dropout_mask", "first_token must", "sequence, cpu", "got", "meta"});
    expect_refusal(mask(longs({1}), p, two, two), {"dba::dropout_mask", "rng must", "(2)", "got", "(1)"});
    expect_refusal(mask(key, p, two, longs({0})), {"dba::dropout_mask", "first_token must", "(2)", "got", "(1)"});
    expect_refusal(mask(key, p, two.to(at::kInt), two), {"dba::dropout_mask", "sequence must", "int64", "got", "int"});
  }
  expect_refusal(mask(key, 1.0, two, two), {"dba::dropout_mask", "dropout must", "got", "1"});
}

TEST(FoldChecks, Shapes) {
  const auto fold = [](const at::Tensor& z, const at::Tensor& weight, const at::Tensor& bias, int64_t heads) {
    return [=] { ops::fold(z, weight, bias, heads, 1.0); };
  };
  expect_refusal(fold(doubles({3}), doubles({4, 5}), {}, 2), {"dba::fold", "z must", "got", "(3)"});
  expect_refusal(fold(doubles({3, 4}), doubles({6, 5}), {}, 2), {"dba::fold", "weight must", "4", "got", "6"});
  expect_refusal(fold(doubles({3, 4}), doubles({4, 5}), doubles({5}), 2), {"dba::fold", "bias must", "got", "(5)"});
  expect_refusal(fold(doubles({3, 4}), doubles({4, 5}), {}, 3), {"dba::fold", "must", "3", "got", "4"});
}

TEST(FoldChecks, Devices) {
  const auto elsewhere = [](at::IntArrayRef sizes) { return doubles(sizes).to(at::kMeta); };
  const auto fold = [](const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& tail,
                       const at::Tensor& tail_bias) {
    return [=] { ops::fold_stack(doubles({3, 4}), {weight}, {bias}, tail, tail_bias, 2, 1.0); };
  };
  const at::Tensor weight = doubles({4, 5}), bias = doubles({4}), tail = doubles({2, 5}), tail_bias = doubles({2});
  EXPECT_NO_THROW(fold(weight, bias, tail, tail_bias)());
  const auto refused = [](const std::function<void()>& call, const std::string& argument) {
    expect_refusal(call, {"dba::fold", "z and " + argument + " must be on one device", "got", "cpu", "meta"});
  };
  refused(fold(elsewhere({4, 5}), bias, tail, tail_bias), "weight");
  refused(fold(weight, elsewhere({4}), tail, tail_bias), "bias");
  refused(fold(weight, bias, elsewhere({2, 5}), tail_bias), "tail");
  refused(fold(weight, bias, tail, elsewhere({2})), "tail_bias");
}

TEST(ModuleChecks, Options) {
  const auto make = [](const DBAttentionOptions& options) { return [=] { DBAttention module(options); }; };
  expect_refusal(make(DBAttentionOptions(10, 4)), {"dba::DBAttention", "d must", "4", "got", "10"});
  expect_refusal(make(DBAttentionOptions(8, 0)), {"dba::DBAttention", "heads must", "got", "0"});
  expect_refusal(make(DBAttentionOptions(0, 1)), {"dba::DBAttention", "d must", "got", "0"});
  expect_refusal(make(DBAttentionOptions(8, 2).d_p(0)), {"dba::DBAttention", "d_p must", "got", "0"});
  expect_refusal(make(DBAttentionOptions(8, 2).d_in(-3)), {"dba::DBAttention", "d_in must", "got", "-3"});
  expect_refusal(make(DBAttentionOptions(8, 2).form(Form::released).compress_length(false)),
                 {"dba::DBAttention", "compress_length", "paper", "released"});
  expect_refusal(make(DBAttentionOptions(8, 2).form(Form::released).compress_width(false)),
                 {"dba::DBAttention", "compress_width", "paper", "released"});
  expect_refusal([] { DBACrossAttention(10, 4); }, {"dba::DBACrossAttention", "d must", "4", "got", "10"});
  expect_refusal([] { SoftmaxAttention(10, 4); }, {"dba::SoftmaxAttention", "d must", "4", "got", "10"});
  expect_refusal([] { parse_form("pape"); }, {"form", "pape", "paper", "released"});
  expect_refusal([] { parse_normalise("max"); }, {"normalise", "max", "softmax", "linear"});
  expect_refusal([] { parse_z_update("none"); }, {"z_update", "none", "residual_norm", "replace", "fixed", "own"});
}

TEST(ModuleChecks, Arguments) {
  for (const Form form : {Form::paper, Form::released}) {
    SCOPED_TRACE(to_string(form));
    DBAttention module(DBAttentionOptions(8, 2).d_p(3).d_in(4).form(form));
    module->to(at::kDouble);
    const at::Tensor x = doubles({6, 8}), z = doubles({3, 8});
    EXPECT_NO_THROW(module->forward(x, six_rows(), z));
    const auto run = [&](const at::Tensor& tokens, const at::Tensor& slots) {
      return [=]() mutable { module->forward(tokens, six_rows(), slots); };
    };
    expect_refusal(run(x, {}), {"dba::DBAttention", "z must"});
    expect_refusal(run(doubles({6, 9}), z), {"dba::DBAttention", "x must", "8", "got", "9"});
    expect_refusal(run(doubles({7, 8}), z), {"dba::DBAttention", "x must", "6", "got", "7"});
    expect_refusal(run(doubles({8}), z), {"dba::DBAttention", "x must", "got", "(8)"});
    expect_refusal(run(x, doubles({4, 8})), {"dba::DBAttention", "z must", "3", "got", "4"});
    expect_refusal(run(x, doubles({3, 7})), {"dba::DBAttention", "z must", "8", "got", "7"});
    expect_refusal(run(x, doubles({5, 3, 8})), {"dba::DBAttention", "z must", "2", "got", "5"});
    expect_refusal(run(x.to(at::kFloat), z), {"dba::DBAttention", "must", "got", "float"});
    expect_refusal(
        [&] {
          module->forward(x.reshape({2, 3, 8}), Sequences::dense(3, 2, at::kCPU), z);
        },
        {"dba::DBAttention", "x must", "got", "(2, 3, 8)"});

    DBAttention own(DBAttentionOptions(8, 2).d_p(3).d_in(4).form(form).z_update(ZUpdate::own));
    own->to(at::kDouble);
    EXPECT_NO_THROW(own->forward(x, six_rows()));
    expect_refusal([&] { own->forward(x, six_rows(), z); }, {"dba::DBAttention", "z must", "own"});

    DBACrossAttention cross(DBAttentionOptions(8, 2).d_p(3).d_in(4).form(form));
    cross->to(at::kDouble);
    EXPECT_NO_THROW(cross->forward(x, six_rows(), doubles({2, 3, 8})));
    expect_refusal(
        [&] {
          cross->forward(x, six_rows(), doubles({3, 3, 8}));
        },
        {"dba::DBACrossAttention", "c_2 must", "2", "got", "(3, 3, 8)"});
    expect_refusal(
        [&] {
          cross->forward(x, six_rows(), doubles({2, 4, 8}));
        },
        {"dba::DBACrossAttention", "c_2 must", "3", "got", "(2, 4, 8)"});
    expect_refusal(
        [&] {
          cross->forward(doubles({6, 7}), six_rows(), doubles({2, 3, 8}));
        },
        {"dba::DBACrossAttention", "x_1 must", "8", "got", "7"});
  }
  SoftmaxAttention softmax(8, 2);
  softmax->to(at::kDouble);
  expect_refusal(
      [&] {
        softmax->forward(doubles({6, 7}), six_rows());
      },
      {"dba::SoftmaxAttention", "x must", "8", "got", "7"});
  expect_refusal(
      [&] {
        softmax->forward(doubles({5, 8}), six_rows());
      },
      {"dba::SoftmaxAttention", "x must", "6", "got", "5"});
}

TEST(Registration, EveryOperatorHasASchema) {
  for (const char* name : {"dba::fold", "dba::compress", "dba::compress_backward", "dba::core", "dba::restore",
                           "dba::restore_backward", "dba::attention"})
    EXPECT_TRUE(c10::Dispatcher::singleton().findSchema({name, ""}).has_value()) << name;
}

/// On the meta device there are shapes and types and no data.
TEST(Registration, ShapeFunctionsKnowShapesAndTypes) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(dtype);
    const auto meta = [&](at::IntArrayRef sizes) { return at::empty(sizes, at::device(at::kMeta).dtype(dtype)); };
    const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const Sequences sequences = Sequences::packed(at::empty({4}, at::device(at::kMeta).dtype(at::kLong)), 20);
    const at::Tensor x = meta({20, 8});
    ops::ScoreRows rows;
    rows.each = meta({3, 12, 8});
    rows.shared = meta({6, 8});
    rows.shared_bias = meta({6});
    const auto expect_meta = [](const at::Tensor& t, at::IntArrayRef sizes, at::ScalarType expected) {
      EXPECT_TRUE(t.is_meta());
      EXPECT_EQ(t.sizes(), sizes);
      EXPECT_EQ(t.scalar_type(), expected);
    };
    const ops::Summary summary = ops::compress(x, sequences, rows);
    expect_meta(summary.c, {3, 18, 8}, wide);
    expect_meta(summary.r, {3, 18}, wide);
    expect_meta(summary.lse, {3, 18}, wide);
    expect_meta(ops::restore(x, sequences, meta({6, 8}), meta({6}), meta({3, 6, 5}), meta({5}), 2), {20, 5}, dtype);
    ops::CoreWeights weights;
    weights.query_weight = weights.key_weight = weights.value_weight = meta({8, 8});
    weights.width = meta({2, 4, 3});
    weights.out_weight = meta({5, 8});
    const ops::AttentionResult result =
        ops::attention(x, sequences, rows, weights, meta({6, 8}), meta({6}), meta({5}), 2);
    expect_meta(result.y, {20, 5}, dtype);
    EXPECT_TRUE(result.c.is_meta());
    EXPECT_EQ(result.c.sizes(), at::IntArrayRef({3, 3, 8}));
    const ops::CoreResult core = ops::core(summary.c, summary.r, weights, 2);
    EXPECT_EQ(core.m.sizes(), at::IntArrayRef({3, 6, 5}));
    EXPECT_EQ(core.c.sizes(), at::IntArrayRef({3, 3, 8}));
    const auto [folded, bias] = ops::fold(meta({3, 8}), meta({8, 7}), meta({8}), 2, 1.0);
    EXPECT_EQ(folded.sizes(), at::IntArrayRef({6, 7}));
    EXPECT_EQ(bias.sizes(), at::IntArrayRef({6}));
  }
}

}  // namespace
}  // namespace dba::test

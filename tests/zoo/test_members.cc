#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "dba/nn/encoder.h"
#include "dba/nn/make_attention.h"
#include "dba/zoo.h"
#include "support/comparison.h"
#include "zoo/layers.h"

/// Every member does what its capability record says.
namespace dba::test {
namespace {

bool has_option(const zoo::Member& member, const std::string& name) {
  return std::any_of(member.options.begin(), member.options.end(), [&](const auto& o) { return o.name == name; });
}

class ZooMember : public ::testing::TestWithParam<std::string> {
 protected:
  const zoo::Member& member = zoo::member(GetParam());
  const zoo::Capabilities& record = member.capabilities;
};

TEST_P(ZooMember, RecordSaysWhetherPositionsHaveParameters) {
  EXPECT_EQ(record.needs_max_length, has_option(member, "max_length"));
  if (!record.needs_max_length) {
    EXPECT_FALSE(record.learned_per_position);
    return;
  }
  const auto count = [&](int64_t length) {
    int64_t sum = 0;
    for (const auto& parameter : zoo::make(member.name, small(), with_length(member, {}, length))->parameters())
      sum += parameter.numel();
    return sum;
  };
  EXPECT_EQ(record.learned_per_position, count(200) != count(900));
  expect_refusal([&] { zoo::make(member.name, small()); }, {member.name, "max_length"});
  const auto layer = layer_of(member, {});
  EXPECT_NO_THROW(run(layer, at::zeros({1, kLongest, 8}, at::kDouble)));
  expect_refusal(
      [&] {
        run(layer, at::zeros({1, kLongest + 1, 8}, at::kDouble));
      },
      {member.name, "max_length = 700", "701"});
}

TEST_P(ZooMember, RecordSaysWhetherASeedDecides) {
  EXPECT_EQ(record.deterministic, !has_option(member, "seed"));
  const at::Tensor x = Random(4).normal({2, 600, 8});
  const auto first = layer_of(member, {});
  const at::Tensor y = run(first, x);
  torch::manual_seed(17);
  EXPECT_TRUE(identical(run(layer_of(member, {}), x), y));
  if (!record.deterministic) {
    EXPECT_FALSE(close(run(layer_of(member, {{"seed", "2"}}), x), y, 1e-3));
  }
}

TEST_P(ZooMember, RecordSaysWhetherItIsSoftmaxAttention) {
  const auto layer = layer_of(member, {});
  const auto parameters = layer->named_parameters();
  for (const char* name : {"w_q.weight", "w_k.weight", "w_v.weight", "w_o.weight"})
    if (!parameters.contains(name)) {
      EXPECT_FALSE(record.exact);
      return;
    }
  const auto truth = make_attention("softmax", small());
  truth->to(at::kDouble);
  for (const auto& item : truth->named_parameters())
    item.value().set_data(parameters[item.key()].detach());
  const at::Tensor x = Random(5).normal({1, 600, 8});
  EXPECT_EQ(record.exact, static_cast<bool>(close(run(layer, x), run(truth, x), 1e-10)));
}

TEST_P(ZooMember, RecordSaysWhetherItDropsOut) {
  const at::Tensor x = Random(6).normal({1, 70, 8});
  const auto layer = layer_of(member, {}, 0.5);
  layer->eval();
  const at::Tensor still = run(layer, x);
  EXPECT_TRUE(identical(still, run(layer_of(member, {}), x)));
  layer->train();
  EXPECT_EQ(record.dropout, !close(run(layer, x), still, 1e-6));
}

TEST_P(ZooMember, RecordSaysWhetherItCarriesSlots) {
  const auto layer = zoo::make(member.name, small().z_update(ZUpdate::residual_norm), with_length(member));
  EXPECT_EQ(record.slots, dynamic_cast<Attention&>(*layer).takes_slots());
}

TEST_P(ZooMember, RecordSaysWhetherItAttendsToAnotherStream) {
  const auto module = layer_of(member, {});
  auto* layer = dynamic_cast<zoo::ZooAttention*>(module.get());
  bool answers = layer != nullptr;
  try {
    if (answers)
      layer->attend_to(at::ones({2, 5, 8}, at::kDouble), Sequences::dense(2, 5, at::kCPU),
                       at::ones({2, 9, 8}, at::kDouble), Sequences::dense(2, 9, at::kCPU));
  } catch (const c10::Error&) {
    answers = false;
  }
  EXPECT_EQ(record.cross_attention, answers);
}

TEST_P(ZooMember, MemoryMayShareOneBoundWithTheQueries) {
  if (!record.cross_attention)
    return;
  const auto module = layer_of(member, {});
  auto& layer = dynamic_cast<zoo::ZooAttention&>(*module);
  const at::Tensor x = Random(3).normal({20, 8}), memory = Random(4).normal({20, 8});
  const at::Tensor begin = torch::tensor({0, 10}, at::kLong), end = torch::tensor({7, 14}, at::kLong);
  const auto of = [&](const at::Tensor& memory_begin) {
    const auto in_memory = Sequences::ranges(memory_begin, torch::tensor({3, 20}, at::kLong), 20);
    return layer.attend_to(x, Sequences::ranges(begin, end, 20), memory, in_memory).y;
  };
  EXPECT_TRUE(identical(of(begin), of(begin.clone())));
}

TEST_P(ZooMember, RecordSaysWhetherItHashes) {
  // Where a hash changes, values jump: over a longer way they change by more than by the slope at its beginning.
  const auto layer = layer_of(member, {});
  const at::Tensor x = Random(3).normal({1, 257, 8}), step = Random(4).normal({1, 257, 8});
  const auto slope = [&](double length) {
    return ((run(layer, x + length * step) - run(layer, x)).norm() / length).item<double>();
  };
  EXPECT_EQ(record.hashes, slope(1e-2) > 3 * slope(1e-8));
}

TEST_P(ZooMember, RecordSaysWhetherItTakesMasks) {
  const auto layer = layer_of(member, {});
  auto& attention = dynamic_cast<Attention&>(*layer);
  const at::Tensor x = Random(2).normal({2, 30, 8});
  at::Tensor filled = at::full({2, 41, 8}, NAN, at::kDouble);
  filled.slice(1, 0, 30).copy_(x);
  const at::Tensor mask = at::arange(41).lt(30).expand({2, 41});
  const at::Tensor y = attention.forward(filled, Sequences::from_mask(mask)).y.slice(1, 0, 30);
  EXPECT_EQ(record.masks, static_cast<bool>(close(y, attention.forward(x).y)));
}

TEST_P(ZooMember, LearnsInAnEncoder) {
  const auto values = with_length(member, {}, 40);
  const std::string method = values.empty() ? member.name : member.name + "(max_length=40)";
  auto layer_options =
      EncoderLayerOptions(8, 2, 16).attention(method).attention_options(DBAttentionOptions(8, 2).d_p(5).d_in(4));
  torch::manual_seed(5);
  Encoder encoder(EncoderOptions(layer_options, 2));
  const PackedBatch batch({7, 0, 40, 1});
  const at::Tensor x = Random(7).normal({batch.rows, 8}).to(at::kFloat);
  const at::Tensor y = encoder->forward(x, batch.sequences);
  random_projection({y}, 8).backward();
  for (const auto& item : encoder->named_parameters()) {
    EXPECT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(all_finite(item.value().grad())) << item.key();
  }
  const auto copy = std::dynamic_pointer_cast<EncoderImpl>(encoder->clone());
  EXPECT_TRUE(identical(copy->forward(x, batch.sequences), y));
  const torch::NoGradGuard no_grad;
  for (auto& parameter : copy->parameters())
    parameter.zero_();
  EXPECT_TRUE(identical(encoder->forward(x, batch.sequences), y)) << "a copy shares weights with its original";
}

TEST_P(ZooMember, SinglePrecisionStaysFiniteForLargeTokens) {
  auto layer = zoo::make(member.name, small(), with_length(member));
  const at::Tensor x = (30 * Random(8).normal({2, 130, 8}).to(at::kFloat)).requires_grad_(true);
  const at::Tensor y = run(layer, x);
  EXPECT_TRUE(all_finite(y));
  y.square().mean().backward();
  EXPECT_TRUE(all_finite(x.grad()));
}

TEST_P(ZooMember, SixteenBitsStayFiniteAndNear) {
  const PackedBatch batch({60, 0, 1, 39});
  const at::Tensor x = Random(9).normal({batch.rows, 8}).to(at::kFloat);
  const auto outcome = [&](at::ScalarType type) {
    torch::manual_seed(6);
    const auto layer = zoo::make(member.name, small(), with_length(member));
    layer->to(type);
    const at::Tensor tokens = x.to(type).clone().requires_grad_(true);
    const at::Tensor y = dynamic_cast<Attention&>(*layer).forward(tokens, batch.sequences).y;
    y.to(at::kFloat).square().mean().backward();
    EXPECT_TRUE(all_finite(y)) << type;
    EXPECT_TRUE(all_finite(tokens.grad())) << type;
    return y;
  };
  const at::Tensor exact = outcome(at::kFloat);
  const at::Tensor half = outcome(at::kHalf), brief = outcome(at::kBFloat16);
  // A rounded token may fall into another bucket, and then sees other tokens.
  if (member.name != "reformer" && member.name != "yoso") {
    EXPECT_TRUE(close(half, exact, 2e-3));
    EXPECT_TRUE(close(brief, exact, 2e-2));
  }
}

/// Python casts a layer's weights and leaves its random choices alone where they are of another module.
TEST_P(ZooMember, BuffersMayBeOfAnotherType) {
  const auto layer = layer_of(member, {});
  const at::Tensor x = Random(12).normal({2, 70, 8});
  const at::Tensor y = run(layer, x);
  for (auto& buffer : layer->buffers())
    buffer.set_data(buffer.to(at::kFloat));
  EXPECT_TRUE(close(run(layer, x), y, 1e-6));
}

/// PyTorch advises against it, and people do it. cosFormer divides by weights of 10⁻⁶ between products that are
/// PyTorch's own, and whose gradients autocast takes in float16.
TEST_P(ZooMember, ABackwardPassMayBeInsideAutocast) {
  const at::Tensor x = Random(13).normal({2, 70, 8}).to(at::kFloat);
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    if (member.name == "cosformer" && type == at::kHalf)
      continue;
    const auto gradient = [&](bool inside) {
      torch::manual_seed(6);
      const auto layer = zoo::make(member.name, small(), with_length(member));
      const at::Tensor tokens = x.clone().requires_grad_(true);
      at::autocast::set_autocast_dtype(at::kCPU, type);
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const at::Tensor y = run(layer, tokens);
      at::autocast::set_autocast_enabled(at::kCPU, inside);
      y.to(at::kFloat).square().sum().backward();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::clear_cache();
      return tokens.grad();
    };
    EXPECT_TRUE(close(gradient(true), gradient(false), 3e-2)) << type;
  }
}

/// Members whose sums over keys leave the range of float16 at ordinary lengths, where they are not taken in float32.
class ZooSums : public ::testing::TestWithParam<std::pair<const char*, OptionValues>> {
 protected:
  /// y and the gradient at the tokens, in double, of a layer in `type`; with autocast to float16 where that is asked
  /// for.
  std::vector<at::Tensor> outcome(const at::Tensor& x, at::ScalarType type, bool autocast = false) const {
    torch::manual_seed(6);
    const auto layer = zoo::make(GetParam().first, DBAttentionOptions(16, 1), GetParam().second);
    for (auto& parameter : layer->parameters())
      parameter.set_data(parameter.to(at::kHalf).to(type));  // the same layer in every type
    for (auto& buffer : layer->buffers())
      buffer.set_data(buffer.to(at::kHalf).to(type));
    const at::Tensor tokens = x.to(type).clone().requires_grad_(true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
    at::autocast::set_autocast_enabled(at::kCPU, autocast);
    const at::Tensor y = run(layer, tokens);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::clear_cache();
    EXPECT_EQ(y.scalar_type(), autocast ? at::kHalf : type);
    random_projection({y.to(at::kDouble)}, 7).backward();
    EXPECT_TRUE(all_finite(y) && all_finite(tokens.grad()));
    return {y.detach().to(at::kDouble), tokens.grad().to(at::kDouble)};
  }
};

TEST_P(ZooSums, OfManyKeysFitIntoFloat16) {
  // Features of tokens on one side are large; those of small tokens all alike, so that the sums are.
  for (const auto& [scale, shift] : {std::pair(1.0, 0.0), std::pair(1.0, 2.0), std::pair(0.05, 0.0)}) {
    SCOPED_TRACE(::testing::Message() << scale << " " << shift);
    const at::Tensor x = (scale * Random(10).normal({1, 8192, 16}) + shift).to(at::kHalf);
    const auto exact = outcome(x, at::kDouble), half = outcome(x, at::kHalf), cast = outcome(x, at::kFloat, true);
    for (size_t i = 0; i < exact.size(); ++i) {
      const auto error = [&](const at::Tensor& y) { return ((y - exact[i]).norm() / exact[i].norm()).item<double>(); };
      EXPECT_LT(error(half[i]), i == 0 ? 2e-3 : 1e-2);
      EXPECT_LT(error(cast[i]), i == 0 ? 2e-3 : 1e-2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Members, ZooSums,
                         ::testing::Values(std::pair("linear", OptionValues{}), std::pair("performer", OptionValues{}),
                                           std::pair("performer", OptionValues{{"kernel", "relu"}}),
                                           std::pair("flowformer", OptionValues{}),
                                           std::pair("cosformer", OptionValues{}),
                                           std::pair("scatterbrain", OptionValues{{"window", "32"}})),
                         [](const auto& info) {
                           return info.param.first + std::string(info.param.second.contains("kernel") ? "_relu" : "");
                         });

TEST_P(ZooMember, RefusesTokensThatAreNoFractions) {
  expect_refusal([&] { run(layer_of(member, {}), at::ones({1, 4, 8}, at::kLong)); }, {"x must be of", "got Long"});
}

TEST_P(ZooMember, TakesBatchesWithoutTokens) {
  const auto layer = layer_of(member, {});
  auto& attention = dynamic_cast<Attention&>(*layer);
  const at::Tensor padding = at::full({2, 3, 8}, NAN, at::kDouble).requires_grad_(true);
  const at::Tensor y = attention.forward(padding, Sequences::from_lengths(at::zeros({2}, at::kLong), 3)).y;
  EXPECT_TRUE(identical(y, at::zeros({2, 3, 8}, at::kDouble)));
  y.sum().backward();
  EXPECT_TRUE(!padding.grad().defined() || identical(padding.grad(), at::zeros({2, 3, 8}, at::kDouble)));
  for (const auto& sizes : {std::vector<int64_t>{0, 5, 8}, std::vector<int64_t>{3, 0, 8}}) {
    const at::Tensor x = at::zeros(sizes, at::kDouble).requires_grad_(true);
    const at::Tensor nothing = attention.forward(x).y;
    EXPECT_EQ(nothing.sizes(), at::IntArrayRef(sizes));
    nothing.sum().backward();
    EXPECT_TRUE(x.grad().defined());
  }
}

INSTANTIATE_TEST_SUITE_P(All, ZooMember, ::testing::ValuesIn(member_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace dba::test

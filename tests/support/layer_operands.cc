#include "support/layer_operands.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/attention_inputs.h"

namespace dba::test {

std::vector<std::pair<std::string, at::Tensor*>> LayerOperands::tensors() {
  std::vector<std::pair<std::string, at::Tensor*>> all = {{"x", &x},
                                                          {"restore_rows", &restore_rows},
                                                          {"restore_bias", &restore_bias},
                                                          {"out_bias", &out_bias},
                                                          {"m", &m},
                                                          {"each", &rows.each},
                                                          {"each_bias", &rows.each_bias},
                                                          {"shared", &rows.shared},
                                                          {"shared_bias", &rows.shared_bias},
                                                          {"query_weight", &weights.query_weight},
                                                          {"query_bias", &weights.query_bias},
                                                          {"key_weight", &weights.key_weight},
                                                          {"key_bias", &weights.key_bias},
                                                          {"value_weight", &weights.value_weight},
                                                          {"value_bias", &weights.value_bias},
                                                          {"width", &weights.width},
                                                          {"compress_weight", &weights.compress_weight},
                                                          {"compress_bias", &weights.compress_bias},
                                                          {"norm_weight", &weights.norm_weight},
                                                          {"norm_bias", &weights.norm_bias},
                                                          {"out_weight", &weights.out_weight},
                                                          {"other", &weights.other}};
  std::erase_if(all, [](const auto& entry) { return !entry.second->defined(); });
  return all;
}

LayerOperands LayerOperands::in(at::ScalarType dtype, at::ScalarType narrow) const {
  LayerOperands result = *this;
  for (auto& [name, tensor] : result.tensors())
    *tensor = tensor->detach().to(narrow).to(dtype, false, true).requires_grad_(true);
  return result;
}

LayerOperands layer_of(const LayerCase& layer, const CoreKind& kind, const std::vector<int64_t>& lengths,
                       uint64_t seed) {
  const AttentionInputs given(layer, kind, lengths, seed);
  LayerOperands result;
  result.sequences = given.batch.sequences;
  result.x = given.x;
  result.restore_rows = given.restore_rows;
  result.restore_bias = given.restore_bias;
  result.out_bias = given.out_bias;
  result.rows = given.rows;
  result.weights = given.core.weights;
  result.heads = given.heads;
  result.linear = given.linear;
  result.dropout = given.dropout;
  result.m = Random(seed + 7).normal({given.batch.count(), layer.heads * layer.d_p, CoreInputs::kOut});
  return result;
}

LayerOperands layer_of_odd_sizes(const std::vector<int64_t>& lengths, int64_t slots) {
  constexpr int64_t kWidth = 83, kOut = 71, kHeads = 3;
  const int64_t each = 3 * slots + 1;
  Random random(61);
  const PackedBatch batch(lengths);
  LayerOperands layer;
  layer.sequences = batch.sequences;
  layer.heads = kHeads;
  layer.dropout = {0.25, at::tensor({int64_t{5}, int64_t{1} << 40}, at::kLong)};
  layer.x = random.normal({batch.rows, kWidth});
  layer.restore_rows = random.normal({batch.count(), kHeads * slots, kWidth}, 0.2);
  layer.restore_bias = random.normal({batch.count(), kHeads * slots}, 0.5);
  layer.out_bias = random.normal({kOut});
  layer.m = random.normal({batch.count(), kHeads * slots, kOut});
  layer.rows.each = random.normal({batch.count(), each, kWidth}, 0.2);
  layer.rows.each_bias = random.normal({batch.count(), each}, 0.5);
  layer.rows.shared = random.normal({3 * kHeads * slots - each, kWidth}, 0.2);
  layer.rows.shared_bias = random.normal({3 * kHeads * slots - each}, 0.5);
  layer.rows.linear = kHeads * slots;
  ops::CoreWeights& w = layer.weights;
  for (at::Tensor* weight : {&w.query_weight, &w.key_weight, &w.value_weight})
    *weight = random.normal({kHeads * 9, kWidth}, 0.1);
  for (at::Tensor* bias : {&w.query_bias, &w.key_bias, &w.value_bias})
    *bias = random.normal({kHeads * 9}, 0.5);
  w.width = random.normal({kHeads, 9, 5}, 0.3);
  w.out_weight = random.normal({kOut, kHeads * 9}, 0.2);
  return layer;
}

std::vector<Named> results_of(const LayerOperands& layer, Backend backend, const std::vector<Named>& leaves,
                              const ChangeGradient& change) {
  const BackendGuard guard(backend);
  const ops::Summary summary = ops::compress(layer.x, layer.sequences, layer.rows, layer.dropout);
  const at::Tensor restored = ops::restore(layer.x, layer.sequences, layer.restore_rows, layer.restore_bias, layer.m,
                                           layer.out_bias, layer.heads, layer.linear, layer.dropout);
  const ops::AttentionResult whole =
      ops::attention(layer.x, layer.sequences, layer.rows, layer.weights, layer.restore_rows, layer.restore_bias,
                     layer.out_bias, layer.heads, layer.linear, layer.dropout);
  // An empty sequence has −inf in lse, whose product with anything but a gradient is useless.
  std::vector<Named> results = {{"c", summary.c},       {"r", summary.r}, {"lse", finite_part(summary.lse)},
                                {"restored", restored}, {"y", whole.y},   {"compressed", whole.c}};
  Random random(9);
  std::vector<at::Tensor> outputs, directions, inputs;
  for (const Named& result : results) {
    outputs.push_back(result.tensor);
    directions.push_back(random.normal(result.tensor.sizes()).to(result.tensor.scalar_type()));
    if (change)
      change(result.name, directions.back());
  }
  for (const Named& leaf : leaves)
    inputs.push_back(leaf.tensor);
  const auto gradients = torch::autograd::grad(outputs, inputs, directions);
  for (size_t i = 0; i < leaves.size(); ++i)
    results.push_back({"gradient of " + leaves[i].name, gradients[i]});
  for (Named& result : results)
    result.tensor = result.tensor.detach();
  return results;
}

std::vector<Named> evaluate(LayerOperands layer, Backend backend) {
  std::vector<Named> leaves;
  for (const auto& [name, tensor] : layer.tensors())
    leaves.push_back({name, *tensor});
  return results_of(layer, backend, leaves);
}

void expect_identical(const std::vector<Named>& actual, const std::vector<Named>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(identical(actual[i].tensor, expected[i].tensor)) << actual[i].name;
}

}  // namespace dba::test

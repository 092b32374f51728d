#pragma once

#include "support/core_inputs.h"

namespace dba::test {

/// Random leaves for everything the attention operator takes, on a packed batch of all lengths.
class AttentionInputs {
 public:
  AttentionInputs(const LayerCase& layer, const CoreKind& kind, const std::vector<int64_t>& lengths, uint64_t seed)
      : batch(lengths), core(layer, kind, batch.count(), seed), heads(layer.heads) {
    Random random(seed + 1);
    constexpr int64_t d = LayerCase::d;
    const int64_t slots = heads * layer.d_p;
    const auto leaf = [&](const std::string& name, at::IntArrayRef sizes, double deviation) {
      own_.push_back({name, random.leaf(sizes, deviation)});
      return own_.back().tensor;
    };
    x = leaf("x", {batch.rows, d}, 1.0);
    // Groups W_r and W_c (or the one group there is) come from the slots, W_c' is shared by all sequences.
    const int64_t primed = kind.groups == 3 ? slots : 0;
    const int64_t of_slots = kind.groups * slots - primed;
    if (layer.per_sequence)
      rows.each = leaf("each", {batch.count(), of_slots, d}, 0.3);
    if (!layer.per_sequence || primed > 0)
      rows.shared = leaf("shared", {layer.per_sequence ? primed : of_slots + primed, d}, 0.3);
    rows.linear = layer.linear ? primed : 0;
    if (layer.bias && rows.shared.defined())
      rows.shared_bias = leaf("shared_bias", {rows.shared.size(0)}, 0.5);
    restore_rows = leaf("restore_rows", {slots, d}, 0.3);
    if (layer.bias) {
      restore_bias = leaf("restore_bias", {slots}, 0.5);
      out_bias = leaf("out_bias", {CoreInputs::kOut}, 0.5);
    }
    linear = layer.linear;
    dropout = {layer.dropout, at::tensor({int64_t{5}, int64_t{1}}, at::kLong)};
  }

  ops::AttentionResult run() const {
    return ops::attention(x, batch.sequences, rows, core.weights, restore_rows, restore_bias, out_bias, heads, linear,
                          dropout);
  }
  std::vector<Named> named() const {
    std::vector<Named> all = own_;
    all.insert(all.end(), core.named_weights().begin(), core.named_weights().end());
    return all;
  }

  PackedBatch batch;
  CoreInputs core;
  int64_t heads;
  bool linear = false;
  at::Tensor x, restore_rows, restore_bias, out_bias;
  ops::ScoreRows rows;
  ops::Dropout dropout;

 private:
  std::vector<Named> own_;
};

}  // namespace dba::test

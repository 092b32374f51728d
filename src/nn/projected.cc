#include "nn/projected.h"

#include <torch/torch.h>

#include <cmath>

#include "nn/rows.h"

namespace dba::projected {
namespace {

using at::Tensor;

/// The sequences of (G·N, w) rows that hold those of (N, …) G times, block behind block.
Sequences repeated(const Sequences& sequences, int64_t blocks) {
  const auto first = torch::arange(blocks, sequences.begin.options()).unsqueeze(1) * sequences.rows;
  Sequences result;
  result.begin = (sequences.begin.unsqueeze(0) + first).flatten();
  result.end = (sequences.end.unsqueeze(0) + first).flatten();
  result.rows = blocks * sequences.rows;
  result.max_length = sequences.max_length;
  return result;
}

Tensor cat_or_absent(const Tensor& a, const Tensor& b) {
  return a.defined() ? torch::cat({a, b}) : a;
}

/// Z of every head, times the scale of the scores: (H, B, d_p, w).
Tensor slots_by_head(const direct::Layer& layer) {
  const auto batch = layer.sequences.count();
  const auto z = layer.z.dim() == 3 ? layer.z : layer.z.unsqueeze(0).expand({batch, -1, -1});
  const auto width = z.size(2) / layer.heads;
  const auto scale = 1.0 / std::sqrt(static_cast<double>(width));
  return z.view({batch, z.size(1), layer.heads, width}).permute({2, 0, 1, 3}) * scale;
}

/// Blocks of the tokens' projections, weighted and summed by the scores that rows (G·B, d_p, w) give: (G, B, d_p, w).
/// weight (G·w, d), bias (G·w) or absent.
Tensor summaries(const Tensor& x, const Sequences& sequences, const Tensor& weight, const Tensor& bias,
                 const Tensor& rows, int64_t blocks) {
  const auto width = weight.size(0) / blocks;
  const auto tokens = torch::nn::functional::linear(x, weight, bias)
                          .view({x.size(0), blocks, width})
                          .transpose(0, 1)
                          .reshape({blocks * x.size(0), width});
  ops::ScoreRows scores;
  scores.each = rows;
  return ops::compress(tokens, repeated(sequences, blocks), scores)
      .c.view({blocks, sequences.count(), rows.size(1), width});
}

/// What the middle of the layer works with, in the accumulation type.
struct Slots {
  Tensor c;                      // (B, d_p, d)
  Tensor queries, keys, values;  // (H, B, d_p, ·)
};

/// (H, B, d_p, w) → (B, d_p, H·w)
Tensor join_heads(const Tensor& slots) {
  return slots.permute({1, 2, 0, 3}).flatten(2);
}

/// (B, d_p, H·w) → (H, B, d_p, w)
Tensor split_heads(const Tensor& slots, int64_t heads) {
  return slots.view({slots.size(0), slots.size(1), heads, slots.size(2) / heads}).permute({2, 0, 1, 3});
}

/// slots (H, B, d_p, v) times a matrix of each head (H, v, w): (H, B, d_p, w)
Tensor times(const Tensor& slots, const Tensor& of_head) {
  const auto product =
      torch::bmm(slots.reshape({slots.size(0), slots.size(1) * slots.size(2), slots.size(3)}), of_head);
  return product.view({slots.size(0), slots.size(1), slots.size(2), of_head.size(2)});
}

Slots paper_slots(const direct::Layer& layer, const Tensor& x) {
  const auto& w = layer.core;
  const auto heads = layer.heads;
  const auto batch = layer.sequences.count();
  const auto z = slots_by_head(layer);
  const auto d_p = z.size(2);
  const auto rows = z.unsqueeze(0).expand({2, -1, -1, -1, -1}).reshape({2 * heads * batch, d_p, z.size(3)});
  const auto c = summaries(x, layer.sequences, torch::cat({w.query_weight, w.key_weight}),
                           cat_or_absent(w.query_bias, w.key_bias), rows, 2 * heads);
  Slots slots{join_heads(c.narrow(0, 0, heads)), c.narrow(0, 0, heads), c.narrow(0, heads, heads), {}};

  ops::ScoreRows mix;
  mix.shared = layer.mix_weight;
  mix.shared_bias = layer.mix_bias;
  mix.linear = layer.linear ? heads * d_p : 0;
  const auto mixed = ops::compress(layer.x, layer.sequences, mix);
  const auto type = mixed.c.scalar_type();
  const auto d = layer.x.size(1);
  const auto value_weight = w.value_weight.to(type).view({heads, w.value_weight.size(0) / heads, d});
  slots.values = times(mixed.c.view({batch, heads, d_p, d}).transpose(0, 1), value_weight.transpose(1, 2));
  if (w.value_bias.defined()) {
    const auto sums = mixed.r.view({batch, heads, d_p, 1}).transpose(0, 1);
    slots.values = slots.values + sums * w.value_bias.to(type).view({heads, 1, 1, -1});
  }
  if (w.width.defined()) {
    const auto width = w.width.to(type);
    slots.queries = times(slots.queries, width);
    slots.keys = times(slots.keys, width);
  }
  return slots;
}

/// The compressed sequence C of form `released`, (B, d_p, d): scores by P_k, sums of P_v. Both projections of a head
/// lie side by side, and the scores look at the first of them alone.
Tensor released_summary(const direct::Layer& layer, const Tensor& x) {
  const auto& w = layer.core;
  const auto heads = layer.heads;
  const auto d = layer.x.size(1);
  const auto by_head = [heads](const Tensor& rows) {
    auto sizes = rows.sizes().vec();
    sizes[0] /= heads;
    sizes.insert(sizes.begin(), heads);
    return rows.view(sizes);
  };
  const auto weight = torch::cat({by_head(layer.key_weight), by_head(w.compress_weight)}, 1);  // (H, e + d_h, d)
  const auto bias = layer.key_bias.defined()
                        ? torch::cat({by_head(layer.key_bias), by_head(w.compress_bias)}, 1).flatten()
                        : Tensor();
  const auto z = slots_by_head(layer);  // (H, B, d_p, e)
  const auto d_h = d / heads;
  const auto rows = torch::constant_pad_nd(z, {0, d_h}).flatten(0, 1);
  return join_heads(summaries(x, layer.sequences, weight.flatten(0, 1), bias, rows, heads).narrow(3, z.size(3), d_h));
}

Slots released_slots(const direct::Layer& layer, const Tensor& c) {
  const auto& w = layer.core;
  const auto projected = [&](const Tensor& weight, const Tensor& bias) {
    const auto type = c.scalar_type();
    const auto wide_bias = bias.defined() ? bias.to(type) : bias;
    return split_heads(torch::nn::functional::linear(c, weight.to(type), wide_bias), layer.heads);
  };
  return {c, projected(w.query_weight, w.query_bias), projected(w.key_weight, w.key_bias),
          projected(w.value_weight, w.value_bias)};
}

}  // namespace

ops::AttentionResult attention(const direct::Layer& layer) {
  const auto& w = layer.core;
  const bool released = w.compress_weight.defined();
  const auto heads = layer.heads;
  // The projections read every row: what stands in those of nobody must not reach the weights' gradients.
  const auto x = clear_rows(layer.x, real_rows(layer.sequences));

  const auto slots = released ? released_slots(layer, released_summary(layer, x)) : paper_slots(layer, x);

  const auto e = slots.queries.size(3);
  const auto logits = torch::matmul(slots.queries, slots.keys.transpose(2, 3)) / std::sqrt(static_cast<double>(e));
  auto mixed = torch::matmul(logits.softmax(3), slots.values);  // (H, B, d_p, d_h)
  const auto type = mixed.scalar_type();
  if (released) {
    const auto joined = join_heads(mixed);
    mixed =
        split_heads(torch::layer_norm(joined, {joined.size(2)}, w.norm_weight.to(type), w.norm_bias.to(type)), heads);
  }
  const auto out_weight = w.out_weight.to(type).view({w.out_weight.size(0), heads, mixed.size(3)}).permute({1, 2, 0});
  const auto m = times(mixed, out_weight).transpose(0, 1).flatten(1, 2);  // (B, H·d_p, d)
  return {ops::restore(layer.x, layer.sequences, layer.restore_weight, layer.restore_bias, m, layer.out_bias, heads,
                       layer.linear),
          slots.c};
}

}  // namespace dba::projected

#include "nn/direct.h"

#include <torch/torch.h>

#include <cmath>

#include "nn/padded.h"

namespace dba::direct {
namespace {

using at::Tensor;

// (B, n, H·w) → (B, H, n, w)
Tensor split_heads(const Tensor& tokens, int64_t heads) {
  return tokens.view({tokens.size(0), tokens.size(1), heads, tokens.size(2) / heads}).transpose(1, 2);
}

Tensor join_heads(const Tensor& tokens) {
  return tokens.transpose(1, 2).flatten(2);
}

Tensor linear(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  return torch::nn::functional::linear(input, weight, bias);
}

/// The mask of a site for whole sequences, (B, H, …) as the weights that it multiplies; undefined without dropout.
class Masks {
 public:
  Masks(const ops::Dropout& dropout, const Tensor& like) : dropout_(dropout), like_(like) {}

  // (B, tokens, groups·H·d_p) cut to one group: (B, H, d_p, tokens)
  Tensor over_tokens(ops::Site site, int64_t batch, int64_t tokens, int64_t heads, int64_t d_p, int64_t group,
                     int64_t groups) const {
    if (dropout_.p == 0) {
      return {};
    }
    const auto sequence = torch::arange(batch, like_.options().dtype(at::kLong));
    const auto mask = ops::dropout_mask(dropout_, site, sequence, torch::zeros_like(sequence), tokens,
                                        groups * heads * d_p, like_.scalar_type());
    return mask.narrow(2, group * heads * d_p, heads * d_p).transpose(1, 2).reshape({batch, heads, d_p, tokens});
  }

 private:
  const ops::Dropout& dropout_;
  const Tensor& like_;
};

Tensor dropped(const Tensor& weights, const Tensor& mask) {
  return mask.defined() ? weights * mask : weights;
}

/// Softmax over the tokens, (B, H, d_p, n); zero where there is no token, and all zero for an empty sequence.
Tensor softmax_over_tokens(const Tensor& scores, const Padded& padded) {
  if (padded.full) {
    return scores.softmax(3);
  }
  const auto valid = padded.valid.unsqueeze(1).unsqueeze(1);
  // An empty sequence keeps its scores, so that no softmax is taken over nothing.
  const auto masked = valid.logical_or(padded.lengths.eq(0).view({-1, 1, 1, 1})).logical_not();
  return scores.masked_fill(masked, -std::numeric_limits<double>::infinity())
      .softmax(3)
      .masked_fill(valid.logical_not(), 0);
}

Tensor slots_by_head(const Tensor& z, int64_t heads) {
  return split_heads(z.dim() == 3 ? z : z.unsqueeze(0), heads);  // (B or 1, H, d_p, w)
}

double inverse_root(int64_t width) {
  return 1.0 / std::sqrt(static_cast<double>(width));
}

}  // namespace

Result attention(const Layer& layer, const ops::Dropout& dropout) {
  const auto& w = layer.core;
  const bool released = w.compress_weight.defined();
  const bool cross = w.other.defined();
  const auto heads = layer.heads;
  const Padded padded(layer.sequences);
  const auto x = padded.pad(layer.x);
  const auto batch = x.size(0);
  const auto n = padded.length;
  const Masks masks(dropout, x);
  const int64_t groups = released || cross ? 1 : 3;
  Result result;

  // Length compression of the queries (released: of everything).
  const auto z = slots_by_head(layer.z, heads);
  const auto d_p = z.size(2);
  const auto scale = inverse_root(z.size(3));
  const auto projected = split_heads(
      linear(x, released ? w.compress_weight : w.query_weight, released ? w.compress_bias : w.query_bias), heads);
  const auto scored = released ? split_heads(linear(x, layer.key_weight, layer.key_bias), heads) : projected;
  result.weights.w_r = dropped(softmax_over_tokens(torch::matmul(z, scored.transpose(2, 3)) * scale, padded),
                               masks.over_tokens(ops::kSiteCompress, batch, n, heads, d_p, 0, groups));
  result.c = join_heads(torch::matmul(result.weights.w_r, projected));

  // Keys and values: compressed tokens (paper), or projections of a compressed sequence.
  Tensor queries = split_heads(result.c, heads);
  Tensor keys, values;
  if (released || cross) {
    const auto source = cross ? w.other : result.c;
    keys = split_heads(linear(source, w.key_weight, w.key_bias), heads);
    values = split_heads(linear(source, w.value_weight, w.value_bias), heads);
    if (released) {
      queries = split_heads(linear(result.c, w.query_weight, w.query_bias), heads);
    }
  } else {
    const auto k = split_heads(linear(x, w.key_weight, w.key_bias), heads);
    const auto v = split_heads(linear(x, w.value_weight, w.value_bias), heads);
    result.weights.w_c = dropped(softmax_over_tokens(torch::matmul(z, k.transpose(2, 3)) * scale, padded),
                                 masks.over_tokens(ops::kSiteCompress, batch, n, heads, d_p, 1, groups));
    keys = torch::matmul(result.weights.w_c, k);
    const auto mix = split_heads(linear(x, layer.mix_weight, layer.mix_bias), heads).transpose(2, 3);  // (B, H, d_p, n)
    const auto normalised = layer.linear ? (mix / padded.lengths.clamp_min(1).to(x.scalar_type()).view({-1, 1, 1, 1}))
                                               .masked_fill(padded.valid.logical_not().unsqueeze(1).unsqueeze(1), 0)
                                         : softmax_over_tokens(mix, padded);
    const auto w_c_prime = dropped(normalised, masks.over_tokens(ops::kSiteCompress, batch, n, heads, d_p, 2, groups));
    values = torch::matmul(w_c_prime, v);
    result.weights.w_c_prime = w_c_prime.transpose(2, 3);
  }

  // P' between the slots.
  if (w.width.defined()) {
    queries = torch::matmul(queries, w.width);
    keys = torch::matmul(keys, w.width);
  }
  const auto logits = torch::matmul(queries, keys.transpose(2, 3)) * inverse_root(queries.size(3));
  const auto core_mask = masks.over_tokens(ops::kSiteCore, batch, d_p, heads, d_p, 0, 1);
  result.weights.p = dropped(logits.softmax(3), core_mask);
  auto mixed = join_heads(torch::matmul(result.weights.p, values));  // (B, d_p, d)
  if (released) {
    mixed = torch::layer_norm(mixed, {mixed.size(2)}, w.norm_weight, w.norm_bias);
  }

  // Back to the tokens.
  auto restore = split_heads(linear(x, layer.restore_weight, layer.restore_bias), heads);  // (B, H, n, d_p)
  if (!layer.linear) {
    restore = restore.softmax(3);
  }
  const auto restore_mask = masks.over_tokens(ops::kSiteRestore, batch, n, heads, d_p, 0, 1);
  restore = dropped(restore, restore_mask.defined() ? restore_mask.transpose(2, 3) : restore_mask);
  result.weights.w_r_prime =
      padded.full ? restore : restore.masked_fill(padded.valid.logical_not().unsqueeze(1).unsqueeze(3), 0);
  const auto joined = join_heads(torch::matmul(result.weights.w_r_prime, split_heads(mixed, heads)));
  result.y = padded.unpad(linear(joined, w.out_weight, layer.out_bias));
  return result;
}

at::Tensor compress(const at::Tensor& x, const Sequences& sequences, const at::Tensor& z, const at::Tensor& key_weight,
                    const at::Tensor& key_bias, const at::Tensor& value_weight, const at::Tensor& value_bias,
                    int64_t heads, const ops::Dropout& dropout) {
  const Padded padded(sequences);
  const auto tokens = padded.pad(x);
  const auto slots = slots_by_head(z, heads);
  const auto scored = split_heads(linear(tokens, key_weight, key_bias), heads);
  const auto values = split_heads(linear(tokens, value_weight, value_bias), heads);
  const auto scores = torch::matmul(slots, scored.transpose(2, 3)) * inverse_root(slots.size(3));
  const auto mask =
      Masks(dropout, tokens).over_tokens(ops::kSiteCompress, tokens.size(0), padded.length, heads, slots.size(2), 0, 1);
  return join_heads(torch::matmul(dropped(softmax_over_tokens(scores, padded), mask), values));
}

}  // namespace dba::direct

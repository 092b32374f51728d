#include "zoo/block_attention.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "zoo/entries_together.h"

namespace dba::zoo {
namespace {

using at::Tensor;

/// Batches and heads of PyTorch's fused attention on a GPU each stand in one axis of a grid.
constexpr int64_t kMostFused = 65535;
/// PyTorch's kernel for the CPU is faster than a map in 16 bits for so many queries and columns of a head only.
constexpr int64_t kFewestBrief = 256, kWidestBrief = 16;

/// Whether a fused kernel takes a batch of so many, and keeps no map: on the CPU dropout makes it do so.
bool fits(const Tensor& queries, int64_t batch, double dropout) {
  return queries.is_cpu() ? dropout == 0 : batch <= kMostFused;
}

bool is_masked(const Seen& part) {
  return part.mask.defined();
}

/// Whether a fused kernel takes queries (…, size, w) with a mask, and is not slower than a transient map.
bool takes_masks(const Tensor& queries) {
  const auto type = queries.scalar_type();
  const bool brief = type == at::kHalf || type == at::kBFloat16;
  if (queries.is_cpu()) {
    const bool small = queries.size(-2) >= kFewestBrief && queries.size(-1) <= kWidestBrief;
    return type == at::kFloat || (brief && small);
  }
  return queries.is_cuda() && (brief || type == at::kFloat) && queries.size(-1) % (brief ? 8 : 4) == 0;
}

/// What is added to scores: zero where the mask is true, else −∞, which no score outweighs. A query that sees nothing
/// sees everything here: it belongs to nobody, and in backward the kernels would take the exponential of −∞ − (−∞).
Tensor added(const Tensor& mask, at::ScalarType type) {
  const auto hidden = mask.logical_not().logical_and_(mask.any(-1, /*keepdim=*/true));
  const auto keys = mask.size(-1);
  auto sizes = mask.sizes().vec();
  sizes.back() += mask.is_cuda() ? (kEntriesTogether - keys % kEntriesTogether) % kEntriesTogether : 0;
  return torch::zeros(sizes, mask.options().dtype(type))
      .narrow(-1, 0, keys)
      .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

/// Fused attention of queries (B, H, g, w) to keys and values (B, H, m, w); what is added to scores, if anything,
/// spreads to (B, H, g, m). On a GPU the memory-efficient kernel is called by name: the choice among all of them would
/// build a plan of cuDNN's for every new shape, and cuDNN wants the mask written out for every query.
Tensor fused(const Tensor& queries, const Tensor& keys, const Tensor& values, const Tensor& bias, double dropout) {
  if (!bias.defined()) {
    return at::scaled_dot_product_attention(queries, keys, values, /*attn_mask=*/{}, dropout);
  }
  if (queries.is_cpu()) {
    return at::scaled_dot_product_attention(queries, keys, values, bias, dropout);
  }
  const auto spread = bias.expand({queries.size(0), queries.size(1), queries.size(2), keys.size(2)});
  return std::get<0>(
      at::_scaled_dot_product_efficient_attention(queries, keys, values, spread, at::GradMode::is_enabled(), dropout));
}

/// Whether most of the keys are the same for every block. On a CPU one product of all queries with them, on a transient
/// map, is faster than fused attention, which wants them copied for every block: up to 1.6 times for the Sparse
/// Transformer (forward at 2,048 tokens), while Pixelfly, with a sixth of its keys shared, would lose.
bool mostly_shared(const Tensor& queries, const std::vector<Seen>& seen) {
  int64_t own = 0, shared = 0;
  for (const auto& part : seen) {
    (part.keys.size(2) < queries.size(2) ? shared : own) += part.keys.size(3);
  }
  return shared > own;
}

/// The keys or values of all that is seen: shared ones once for every block, blocks before heads in memory.
Tensor joined(const std::vector<Seen>& seen, Tensor Seen::*of, int64_t blocks) {
  if (seen.size() == 1 && seen[0].keys.size(2) == blocks) {
    return seen[0].*of;
  }
  std::vector<Tensor> parts;
  for (const auto& part : seen) {
    parts.push_back((part.*of).expand({-1, -1, blocks, -1, -1}).transpose(1, 2));
  }
  return torch::cat(parts, 3).transpose(1, 2);
}

/// What the masks of all parts spread to, but for the keys.
std::vector<int64_t> spread_of_masks(const std::vector<Seen>& seen) {
  std::vector<int64_t> spread(4, 1);
  for (const auto& part : seen) {
    if (is_masked(part)) {
      spread = at::infer_size(spread, part.mask.sizes().slice(0, 4));
    }
  }
  return spread;
}

/// The masks of all parts as one.
Tensor joined_masks(const std::vector<Seen>& seen) {
  if (seen.size() == 1) {
    return seen[0].mask;
  }
  auto spread = spread_of_masks(seen);
  spread.push_back(0);
  std::vector<Tensor> masks;
  for (const auto& part : seen) {
    spread[4] = part.keys.size(3);
    masks.push_back(is_masked(part) ? part.mask.expand(spread)
                                    : torch::ones({}, part.keys.options().dtype(at::kBool)).expand(spread));
  }
  return torch::cat(masks, 4);
}

/// Blocks as a batch of fused attention: (B·blocks, H, …), which is a view of blocks that lie in a plain batch. A mask
/// of single queries that all sequences share would be copied for every sequence there: it stands in (B, blocks·H, …),
/// copied for every head.
Tensor fused_blocks(const Tensor& queries, const std::vector<Seen>& seen, double dropout,
                    const std::optional<ops::KeptKey>& key) {
  const auto batch = queries.size(0), heads = queries.size(1), count = queries.size(2);
  const bool masked = std::any_of(seen.begin(), seen.end(), is_masked);
  const auto spread = spread_of_masks(seen);
  const bool by_sequence = masked && spread[0] == 1 && spread[3] > 1 && heads < batch && heads * count <= kMostFused;
  const auto laid = [&](const Tensor& blocks) {
    const auto by_block = blocks.transpose(1, 2);
    return by_sequence ? by_block.flatten(1, 2) : by_block.flatten(0, 1);
  };
  Tensor bias;
  if (masked) {
    bias = ops::kept_tensor(ops::more_of(key, "bias", {batch, heads}), queries.options(), [&] {
      const auto mask = joined_masks(seen);
      return added(
          by_sequence ? laid(mask.expand({1, heads, count, -1, -1})) : laid(mask.expand({batch, -1, count, -1, -1})),
          queries.scalar_type());
    });
  }
  const auto keys = joined(seen, &Seen::keys, count), values = joined(seen, &Seen::values, count);
  const auto mixed = fused(laid(queries), laid(keys), laid(values), bias, dropout);
  return (by_sequence ? mixed.unflatten(1, {count, heads}) : mixed.unflatten(0, {batch, count})).transpose(1, 2);
}

}  // namespace

at::Tensor attend_blocks(const at::Tensor& queries, const std::vector<Seen>& seen, double dropout,
                         const std::optional<ops::KeptKey>& key) {
  const bool everything = std::none_of(seen.begin(), seen.end(), is_masked);
  const bool in_one = queries.is_cpu() && mostly_shared(queries, seen);
  const bool fuses = !in_one && fits(queries, queries.size(0) * queries.size(2), dropout);
  if (fuses && (everything || takes_masks(queries))) {
    return fused_blocks(queries, seen, dropout, key);
  }
  return transient_map_attention(queries, seen, dropout);
}

at::Tensor attend_keys(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                       const at::Tensor& mask, double dropout, const std::optional<ops::KeptKey>& key) {
  const auto as_block = [&](const Tensor& rows) { return rows.to(queries.scalar_type()).unsqueeze(2); };
  const Seen all{as_block(keys), as_block(values), mask.defined() ? mask.unsqueeze(2) : mask};
  return attend_blocks(queries.unsqueeze(2), {all}, dropout, key).squeeze(2);
}

at::Tensor attend_on_a_map(const Blocks& whole, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& seen, int64_t heads, double dropout,
                           const std::optional<ops::KeptKey>& key) {
  const auto exists = whole.real();  // (B, 1, n)
  const auto mask = exists.defined() ? seen.logical_and(exists) : seen;
  const auto taken = [&](const Tensor& rows) { return whole.take_whole(rows, heads); };
  return whole.give_whole(attend_keys(taken(q), taken(k), taken(v), mask.unsqueeze(1), dropout, key));
}

at::Tensor attend_all(const at::Tensor& queries, const Blocks& blocks, const at::Tensor& keys, const at::Tensor& values,
                      double dropout) {
  const bool fuses = fits(queries, queries.size(0), dropout) && takes_masks(queries);
  if (fuses && !blocks.real().defined()) {
    return fused(queries, keys.flatten(2, 3), values.flatten(2, 3), /*bias=*/{}, dropout);
  }
  const auto tokens = [](const Tensor& of) { return of.flatten(2, 3).unsqueeze(2); };
  const auto exists = blocks.real().defined() ? key_mask(blocks.valid().flatten(1).unsqueeze(1)) : Tensor();
  const std::vector<Seen> all{{tokens(keys), tokens(values), exists}};
  const auto asking = queries.unsqueeze(2);
  const auto mixed = fuses ? fused_blocks(asking, all, dropout, blocks.key("all_tokens"))
                           : transient_map_attention(asking, all, dropout);
  return mixed.squeeze(2);
}

}  // namespace dba::zoo

#include "zoo/block_attention.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

namespace dba::zoo {
namespace {

using at::Tensor;

/// Batches and heads of PyTorch's fused attention on a GPU each stand in one axis of a grid.
constexpr int64_t kMostFused = 65535;
/// Keys of the memory-efficient kernel: rows of its mask begin at multiples of 16 bytes, of whatever type.
constexpr int64_t kKeysTogether = 8;
/// PyTorch's kernel for the CPU is faster than a map in 16 bits for so many queries and columns of a head only.
constexpr int64_t kFewestBrief = 256, kWidestBrief = 16;

bool fits(const Tensor& queries) {
  return queries.is_cpu() || queries.size(0) * queries.size(2) <= kMostFused;
}

bool is_masked(const Seen& part) {
  return part.mask.defined();
}

/// Whether a fused kernel takes queries (B, H, blocks, size, w) with a mask, and is not slower than a map in memory.
bool takes_masks(const Tensor& queries, double dropout) {
  const auto type = queries.scalar_type();
  const bool brief = type == at::kHalf || type == at::kBFloat16;
  if (queries.is_cpu()) {
    const bool small = queries.size(3) >= kFewestBrief && queries.size(4) <= kWidestBrief;
    return dropout == 0 && (type == at::kFloat || (brief && small));
  }
  return queries.is_cuda() && (brief || type == at::kFloat) && queries.size(4) % (brief ? 8 : 4) == 0;
}

/// What is added to scores: zero where the mask is true, else so low that the softmax gives nothing. Not lower: in
/// backward the kernels take exp(score − log-sum-exp), and where a query sees nothing both are about as low as this; if
/// their rounding were large, an infinite weight would meet the zero gradient of that row.
Tensor added(const Tensor& mask, at::ScalarType type) {
  const double low = type == at::kHalf ? low_score(type) / 2 : -1e6;
  return torch::zeros(mask.sizes(), mask.options().dtype(type)).masked_fill_(mask.logical_not(), low);
}

/// Fused attention of queries (B, H, g, w) to keys and values (B, H, m, w); a mask spreads to (B, H, g, m). On a GPU
/// the memory-efficient kernel is called by name: the choice among all of them would build a plan of cuDNN's for every
/// new shape, and cuDNN wants the mask written out for every query.
Tensor fused(const Tensor& queries, const Tensor& keys, const Tensor& values, const Tensor& mask, double dropout) {
  if (!mask.defined()) {
    return at::scaled_dot_product_attention(queries, keys, values, /*attn_mask=*/{}, dropout);
  }
  const auto bias = added(mask, queries.scalar_type());
  if (queries.is_cpu()) {
    return at::scaled_dot_product_attention(queries, keys, values, bias, dropout);
  }
  const auto spread = bias.expand({queries.size(0), queries.size(1), queries.size(2), keys.size(2)});
  return std::get<0>(
      at::_scaled_dot_product_efficient_attention(queries, keys, values, spread, at::GradMode::is_enabled(), dropout));
}

/// Zero keys, zero values and a mask that hides them, as many as a kernel of the GPU wants beside `keys`.
Seen filling(const Tensor& queries, int64_t keys) {
  const auto missing = queries.is_cuda() ? (kKeysTogether - keys % kKeysTogether) % kKeysTogether : 0;
  const auto zeros =
      queries.new_zeros({1, 1, 1, missing, queries.size(4)}).expand({queries.size(0), queries.size(1), 1, -1, -1});
  return {zeros, zeros, torch::zeros({1, 1, 1, 1, missing}, queries.options().dtype(at::kBool))};
}

/// All that is seen as one part: shared keys and values once for every block, blocks before heads in memory.
Seen joined(const std::vector<Seen>& seen, int64_t blocks) {
  if (seen.size() == 1 && seen[0].keys.size(2) == blocks) {
    return seen[0];
  }
  const auto together = [&](Tensor Seen::*of) {
    std::vector<Tensor> parts;
    for (const auto& part : seen) {
      parts.push_back((part.*of).expand({-1, -1, blocks, -1, -1}).transpose(1, 2));
    }
    return torch::cat(parts, 3).transpose(1, 2);
  };
  Seen all{together(&Seen::keys), together(&Seen::values), {}};
  if (std::none_of(seen.begin(), seen.end(), is_masked)) {
    return all;
  }
  std::vector<int64_t> spread(4, 1);
  for (const auto& part : seen) {
    if (is_masked(part)) {
      spread = at::infer_size(spread, part.mask.sizes().slice(0, 4));
    }
  }
  spread.push_back(0);
  std::vector<Tensor> masks;
  for (const auto& part : seen) {
    spread[4] = part.keys.size(3);
    masks.push_back(is_masked(part) ? part.mask.expand(spread)
                                    : torch::ones({}, part.keys.options().dtype(at::kBool)).expand(spread));
  }
  all.mask = torch::cat(masks, 4);
  return all;
}

/// Blocks as a batch of fused attention: (B·blocks, H, …), which is a view of blocks that lie in a plain batch. A mask
/// of single queries that all sequences share would be copied for every sequence there: it stands in (B, blocks·H, …),
/// copied for every head.
Tensor fused_blocks(const Tensor& queries, std::vector<Seen> seen, double dropout) {
  const auto batch = queries.size(0), heads = queries.size(1), count = queries.size(2);
  if (std::any_of(seen.begin(), seen.end(), is_masked)) {
    int64_t keys = 0;
    for (const auto& part : seen) {
      keys += part.keys.size(3);
    }
    if (auto more = filling(queries, keys); more.keys.size(3) > 0) {
      seen.push_back(std::move(more));
    }
  }
  const auto all = joined(seen, count);
  const bool by_sequence =
      is_masked(all) && all.mask.size(0) == 1 && all.mask.size(3) > 1 && heads < batch && heads * count <= kMostFused;
  const auto laid = [&](const Tensor& blocks) {
    const auto by_block = blocks.transpose(1, 2);
    return by_sequence ? by_block.flatten(1, 2) : by_block.flatten(0, 1);
  };
  Tensor mask;
  if (is_masked(all)) {
    mask = by_sequence ? laid(all.mask.expand({1, heads, count, -1, -1}))
                       : laid(all.mask.expand({batch, -1, count, -1, -1}));
  }
  const auto mixed = fused(laid(queries), laid(all.keys), laid(all.values), mask, dropout);
  return (by_sequence ? mixed.unflatten(1, {count, heads}) : mixed.unflatten(0, {batch, count})).transpose(1, 2);
}

/// a (B, G, H, s, w) times b (B, G or 1, H, w, t); a shared b is not copied for every block.
Tensor product(const Tensor& a, const Tensor& b) {
  if (b.size(1) == a.size(1)) {
    return torch::matmul(a, b);
  }
  const auto tokens = torch::matmul(a.transpose(1, 2).flatten(2, 3), b.squeeze(1));  // (B, H, G·s, t)
  return tokens.unflatten(2, {a.size(1), a.size(3)}).transpose(1, 2);
}

/// The same with the map in memory, (B, blocks, H, size, m).
Tensor written_out(const Tensor& queries, const std::vector<Seen>& seen, double dropout) {
  const auto scaled = queries.transpose(1, 2) / std::sqrt(static_cast<double>(queries.size(4)));
  std::vector<Tensor> scores;
  std::vector<int64_t> widths;
  for (const auto& part : seen) {
    const auto mask = is_masked(part) ? part.mask.transpose(1, 2) : part.mask;
    scores.push_back(masked_scores(product(scaled, part.keys.permute({0, 2, 1, 4, 3})), mask));
    widths.push_back(part.keys.size(3));
  }
  const auto map =
      torch::dropout((scores.size() == 1 ? scores[0] : torch::cat(scores, 4)).softmax(4), dropout, dropout > 0);
  const auto maps = map.split_with_sizes(widths, 4);
  Tensor sum;
  for (size_t i = 0; i < seen.size(); ++i) {
    const auto part = product(maps[i], seen[i].values.transpose(1, 2));
    sum = sum.defined() ? sum + part : part;
  }
  return sum.transpose(1, 2);
}

}  // namespace

at::Tensor attend_blocks(const at::Tensor& queries, const std::vector<Seen>& seen, double dropout) {
  const bool everything = std::none_of(seen.begin(), seen.end(), is_masked);
  if (fits(queries) && (everything || takes_masks(queries, dropout))) {
    return fused_blocks(queries, seen, dropout);
  }
  // Where rows of keys are shorter than columns of scores, they are better joined before the product than behind it.
  const bool join = seen.size() > 1 && queries.size(4) <= queries.size(3);
  return written_out(queries, join ? std::vector<Seen>{joined(seen, queries.size(2))} : seen, dropout);
}

at::Tensor attend_all(const at::Tensor& queries, const Blocks& blocks, const at::Tensor& keys, const at::Tensor& values,
                      double dropout) {
  const auto tokens = [](const Tensor& of) { return of.flatten(2, 3).unsqueeze(2); };
  const auto exists = blocks.real().defined() ? key_mask(blocks.valid().flatten(1).unsqueeze(1)) : Tensor();
  const std::vector<Seen> all{{tokens(keys), tokens(values), exists}};
  const auto asking = queries.unsqueeze(2);
  const bool fuses = fits(asking) && takes_masks(asking, dropout);
  return (fuses ? fused_blocks(asking, all, dropout) : written_out(asking, all, dropout)).squeeze(2);
}

}  // namespace dba::zoo

#include "zoo/blocks.h"

#include <ATen/ExpandUtils.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "nn/padded.h"

namespace dba::zoo {
namespace {

using at::Tensor;

/// Batches of PyTorch's fused attention on a GPU stand in one axis of a grid.
constexpr int64_t kMostFused = 65535;

/// a (B, H, G, s, w) times b (B, H, G or 1, w, t); a shared b is not copied for every block.
Tensor product(const Tensor& a, const Tensor& b) {
  if (b.size(2) == a.size(2)) {
    return torch::matmul(a, b);
  }
  return torch::matmul(a.flatten(2, 3), b.squeeze(2)).unflatten(2, {a.size(2), a.size(3)});
}

/// Attention to all that is seen, blocks of all sequences as a batch of PyTorch's fused attention: (B·blocks, H, size,
/// w), which is a view of blocks that lie in a plain batch.
Tensor fused(const Tensor& queries, const std::vector<Seen>& seen, double dropout) {
  const auto batch = queries.size(0), count = queries.size(2);
  const auto by_block = [&](const Tensor& blocks) { return blocks.expand({-1, -1, count, -1, -1}).transpose(1, 2); };
  const auto all = [&](Tensor Seen::*of) {
    std::vector<Tensor> parts;
    for (const auto& part : seen) {
      parts.push_back(by_block(part.*of));
    }
    return (parts.size() == 1 ? parts[0] : torch::cat(parts, 3)).flatten(0, 1);
  };
  const auto mixed =
      at::scaled_dot_product_attention(by_block(queries).flatten(0, 1), all(&Seen::keys), all(&Seen::values),
                                       /*attn_mask=*/{}, dropout);
  return mixed.unflatten(0, {batch, count}).transpose(1, 2);
}

/// All that is seen as one part: shared keys and values once for every block.
Seen joined(const std::vector<Seen>& seen, int64_t blocks) {
  std::vector<Tensor> keys, values, masks;
  std::vector<int64_t> spread(4, 1);
  for (const auto& part : seen) {
    keys.push_back(part.keys.expand({-1, -1, blocks, -1, -1}));
    values.push_back(part.values.expand({-1, -1, blocks, -1, -1}));
    if (part.mask.defined()) {
      spread = at::infer_size(spread, part.mask.sizes().slice(0, 4));
    }
  }
  spread.push_back(0);
  for (const auto& part : seen) {
    spread[4] = part.keys.size(3);
    masks.push_back(part.mask.defined() ? part.mask.expand(spread)
                                        : torch::ones(spread, part.keys.options().dtype(at::kBool)));
  }
  return {torch::cat(keys, 3), torch::cat(values, 3), torch::cat(masks, 4)};
}

}  // namespace

Blocks::Blocks(const Sequences& sequences, const at::Tensor& sizes_, int64_t size_, int64_t count_)
    : batch(sequences.count()),
      count(count_),
      size(size_),
      lengths(sequences.lengths()),
      sizes(sizes_),
      sequences_(sequences),
      plain_(is_plain(sequences)),
      full_(plain_ && count * size == sequences.padded_length) {
  counts = (lengths + sizes - 1).div(sizes, "floor");
}

const at::Tensor& Blocks::position() const {
  if (!position_.defined()) {
    const auto options = lengths.options();
    position_ = torch::arange(count, options).view({1, -1, 1}) * sizes.view({-1, 1, 1}) + torch::arange(size, options);
  }
  return position_;
}

const at::Tensor& Blocks::valid() const {
  if (!valid_.defined()) {
    const auto in_block = torch::arange(size, lengths.options()).lt(sizes.view({-1, 1, 1}));
    valid_ = in_block.logical_and(position().lt(lengths.view({-1, 1, 1})));
  }
  return valid_;
}

Blocks::Blocks(const Sequences& sequences, int64_t size_)
    : Blocks(sequences, torch::full_like(sequences.begin, size_), size_,
             std::max<int64_t>((sequences.longest() + size_ - 1) / size_, 1)) {}

Blocks Blocks::whole(const Sequences& sequences) {
  return Blocks(sequences, std::max<int64_t>(sequences.longest(), 1));
}

Blocks Blocks::square(const Sequences& sequences) {
  // Squares have exact roots. ⌈n/⌈√n⌉⌉ blocks are never more than ⌈√n⌉.
  const auto root = sequences.lengths().to(at::kDouble).sqrt().ceil().to(at::kLong).clamp_min(1);
  const auto longest = std::max<int64_t>(sequences.longest(), 1);
  const auto size = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(longest))));
  return Blocks(sequences, root, size, (longest + size - 1) / size);
}

at::Tensor Blocks::take(const at::Tensor& rows, int64_t heads) const {
  const auto width = rows.size(1) / heads;
  Tensor grid;  // (B, blocks·size, H·w)
  if (plain_) {
    grid = rows.reshape({batch, sequences_.padded_length, rows.size(1)});
    const auto missing = count * size - sequences_.padded_length;
    grid = missing > 0 ? at::constant_pad_nd(grid, {0, 0, 0, missing}) : grid;
  } else if (rows.size(0) == 0) {
    grid = rows.new_zeros({batch, count * size, rows.size(1)}) + rows.sum();
  } else {
    const auto row = (sequences_.begin.view({-1, 1, 1}) + position()).masked_fill(valid().logical_not(), 0);
    grid = rows.index_select(0, row.flatten()).masked_fill(valid().logical_not().view({-1, 1}), 0);
  }
  return grid.reshape({batch, count, size, heads, width}).permute({0, 3, 1, 2, 4});
}

at::Tensor Blocks::give(const at::Tensor& blocks) const {
  const auto width = blocks.size(1) * blocks.size(4);
  const auto grid = blocks.permute({0, 2, 3, 1, 4}).reshape({batch, count * size, width});
  if (plain_) {
    return grid.narrow(1, 0, sequences_.padded_length).reshape({-1, width});
  }
  if (grid.numel() == 0) {
    return grid.new_zeros({sequences_.rows, width}) + grid.sum();
  }
  const auto sequence = sequences_.sequence_of_row();
  const auto nobody = sequence.lt(0);
  const auto owner = sequence.clamp_min(0);
  const auto own_size = sizes.index_select(0, owner);
  const auto token = sequences_.position_of_row();
  const auto place = (owner * count + token.div(own_size, "floor")) * size + token.remainder(own_size);
  return grid.reshape({-1, width}).index_select(0, place).masked_fill(nobody.unsqueeze(1), 0);
}

at::Tensor key_mask(const at::Tensor& valid) {
  return valid.defined() ? valid.unsqueeze(1).unsqueeze(3) : valid;
}

at::Tensor gather_blocks(const at::Tensor& blocks, const at::Tensor& index) {
  const auto batch = blocks.size(0), heads = blocks.size(1), count = blocks.size(2), size = blocks.size(3);
  const auto group = torch::arange(batch * heads, index.options()).view({batch, heads, 1, 1});
  const auto flat = (group * count + index).flatten();
  return blocks.reshape({batch * heads * count, size * blocks.size(4)})
      .index_select(0, flat)
      .view({batch, heads, count, index.size(3) * size, blocks.size(4)});
}

double low_score(at::ScalarType type) {
  return type == at::kHalf ? -65504.0 : -1e30;
}

at::Tensor masked_scores(const at::Tensor& scores, const at::Tensor& mask) {
  return mask.defined() ? scores.masked_fill(mask.logical_not(), low_score(scores.scalar_type())) : scores;
}

at::Tensor attend_blocks(const at::Tensor& queries, const std::vector<Seen>& seen, double dropout) {
  const bool everything = std::none_of(seen.begin(), seen.end(), [](const Seen& part) { return part.mask.defined(); });
  if (everything && (queries.is_cpu() || queries.size(0) * queries.size(2) <= kMostFused)) {
    return fused(queries, seen, dropout);
  }
  // Rows of keys are shorter than columns of scores: better joined before the product than behind it.
  if (seen.size() > 1 && queries.size(4) <= queries.size(3)) {
    return attend_blocks(queries, {joined(seen, queries.size(2))}, dropout);
  }
  const auto scaled = queries / std::sqrt(static_cast<double>(queries.size(-1)));
  std::vector<Tensor> scores;
  std::vector<int64_t> widths;
  for (const auto& part : seen) {
    scores.push_back(masked_scores(product(scaled, part.keys.transpose(-2, -1)), part.mask));
    widths.push_back(part.keys.size(-2));
  }
  const auto map =
      torch::dropout((scores.size() == 1 ? scores[0] : torch::cat(scores, -1)).softmax(-1), dropout, dropout > 0);
  const auto maps = map.split_with_sizes(widths, -1);
  Tensor sum;
  for (size_t i = 0; i < seen.size(); ++i) {
    const auto part = product(maps[i], seen[i].values);
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

at::Tensor attend_all(const at::Tensor& queries, const Blocks& blocks, const at::Tensor& keys, const at::Tensor& values,
                      double dropout) {
  const auto scores =
      torch::matmul(queries, keys.flatten(2, 3).transpose(2, 3)) / std::sqrt(static_cast<double>(queries.size(-1)));
  const auto exists = blocks.valid().flatten(1).unsqueeze(1).unsqueeze(1);
  return torch::matmul(torch::dropout(masked_scores(scores, exists).softmax(-1), dropout, dropout > 0),
                       values.flatten(2, 3));
}

at::Tensor first_tokens(const at::Tensor& blocks, int64_t first) {
  const auto tokens = blocks.flatten(2, 3);
  return tokens.narrow(2, 0, std::min(first, tokens.size(2)));
}

at::Tensor with_first_tokens(const at::Tensor& blocks, const at::Tensor& first) {
  const auto rest = blocks.flatten(2, 3).slice(2, first.size(2));
  return torch::cat({first, rest}, 2).unflatten(2, {blocks.size(2), blocks.size(3)});
}

Band::Band(const Blocks& blocks) {
  const auto options = blocks.lengths.options();
  const int64_t beside = blocks.count > 1 ? 1 : 0;
  const auto neighbour =
      torch::arange(blocks.count, options).unsqueeze(1) + torch::arange(-beside, beside + 1, options);
  index = neighbour.clamp(0, blocks.count - 1).view({1, 1, blocks.count, -1});
  const auto query = torch::arange(blocks.count * blocks.size, options).view({blocks.count, blocks.size, 1});
  const auto key =
      (neighbour.unsqueeze(2) * blocks.size + torch::arange(blocks.size, options)).view({blocks.count, 1, -1});
  const auto near = (query - key).abs().le(blocks.size).logical_and(key.ge(0));
  const auto exists = key.unsqueeze(0).lt(blocks.lengths.view({-1, 1, 1, 1}));
  mask = near.unsqueeze(0).logical_and(exists).unsqueeze(1);
}

}  // namespace dba::zoo

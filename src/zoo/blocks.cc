#include "zoo/blocks.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "nn/padded.h"
#include "nn/transformed.h"
#include "nn/transient_map.h"

namespace dba::zoo {
namespace {

/// Blocks (B, H, blocks, size, w) by their numbers among all in memory, (B·blocks·H·G) → (B, H, blocks, G·size, w),
/// blocks before heads in memory.
at::Tensor listed(const at::Tensor& blocks, const at::Tensor& row) {
  const auto batch = blocks.size(0), heads = blocks.size(1), count = blocks.size(2), width = blocks.size(4);
  return blocks.transpose(1, 2)
      .reshape({batch * count * heads, blocks.size(3) * width})
      .index_select(0, row)
      .view({batch, count, heads, -1, width})
      .transpose(1, 2);
}

/// The same as one node of a graph.
struct Listed : torch::autograd::Function<Listed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& blocks,
                            const at::Tensor& row) {
    context->save_for_backward({row});
    context->saved_data["sizes"] = blocks.transpose(1, 2).sizes().vec();
    return listed(blocks, row);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto row = context->get_saved_variables()[0];
    const auto sizes = context->saved_data["sizes"].toIntVector();  // (B, blocks, H, size, w)
    const auto given = gradients[0].transpose(1, 2).reshape({row.size(0), sizes[3] * sizes[4]});
    auto sums = given.new_zeros({sizes[0] * sizes[1] * sizes[2], given.size(1)});
    sums.index_add_(0, row, given);
    return {sums.view(sizes).transpose(1, 2), {}};
  }
};

}  // namespace

Blocks::Blocks(const Sequences& sequences, const at::Tensor& sizes, int64_t size_, int64_t count_)
    : batch(sequences.count()),
      count(count_),
      size(size_),
      sequences_(sequences),
      plain_(is_plain(sequences)),
      full_(plain_ && count * size == sequences.padded_length),
      sizes_(sizes) {}

const at::Tensor& Blocks::lengths() const {
  if (!lengths_.defined()) {
    lengths_ = ops::kept_tensor(key("lengths"), numbers(), [&] { return sequences_.lengths(); });
  }
  return lengths_;
}

const at::Tensor& Blocks::counts() const {
  if (!counts_.defined()) {
    counts_ =
        sizes_.defined() ? (lengths() + sizes_ - 1).div(sizes_, "floor") : (lengths() + (size - 1)).div(size, "floor");
  }
  return counts_;
}

const at::Tensor& Blocks::sizes() const {
  if (!sizes_.defined()) {
    sizes_ = torch::full_like(sequences_.begin, size);
  }
  return sizes_;
}

const at::Tensor& Blocks::position() const {
  if (!position_.defined()) {
    const auto options = numbers();
    position_ = sizes_.defined() ? torch::arange(count, options).view({1, -1, 1}) * sizes_.view({-1, 1, 1}) +
                                       torch::arange(size, options)
                                 : torch::arange(count * size, options).view({1, count, size});
  }
  return position_;
}

const at::Tensor& Blocks::valid() const {
  if (!valid_.defined()) {
    valid_ = ops::kept_tensor(key("valid"), numbers().dtype(at::kBool), [&] {
      const auto inside = position().lt(lengths().view({-1, 1, 1}));
      return sizes_.defined() ? inside.logical_and(torch::arange(size, numbers()).lt(sizes_.view({-1, 1, 1}))) : inside;
    });
  }
  return valid_;
}

std::optional<ops::KeptKey> Blocks::key(const char* name, const std::vector<int64_t>& own) const {
  if (!plain_) {
    return std::nullopt;
  }
  ops::KeptKey key{name, {batch, count, size, sequences_.padded_length}};
  key.numbers.insert(key.numbers.end(), own.begin(), own.end());
  return key;
}

const at::Tensor& Blocks::row_at() const {
  if (!row_at_.defined()) {
    const auto row = sequences_.begin.view({-1, 1, 1}) + position();
    row_at_ = row.masked_fill(valid().logical_not(), -1).flatten();
  }
  return row_at_;
}

const at::Tensor& Blocks::place_of() const {
  if (!place_of_.defined()) {
    const auto sequence = sequences_.sequence_of_row();
    const auto own_size = sizes().index_select(0, sequence.clamp_min(0));
    const auto token = sequences_.position_of_row();
    const auto place = (sequence * count + token.div(own_size, "floor")) * size + token.remainder(own_size);
    place_of_ = torch::where(sequence.ge(0), place, sequence);
  }
  return place_of_;
}

Blocks::Blocks(const Sequences& sequences, int64_t size_)
    : Blocks(sequences, at::Tensor(), size_, std::max<int64_t>((sequences.longest() + size_ - 1) / size_, 1)) {}

Blocks Blocks::up_to(const Sequences& sequences, int64_t size) {
  return Blocks(sequences, std::min(size, std::max<int64_t>(sequences.longest(), 1)));
}

Blocks Blocks::whole(const Sequences& sequences) {
  return Blocks(sequences, std::max<int64_t>(sequences.longest(), 1));
}

Blocks Blocks::square(const Sequences& sequences) {
  // Squares have exact roots. ⌈n/⌈√n⌉⌉ blocks are never more than ⌈√n⌉.
  const auto longest = std::max<int64_t>(sequences.longest(), 1);
  const auto size = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(longest))));
  const auto roots = [&] { return sequences.lengths().to(at::kDouble).sqrt().ceil().to(at::kLong).clamp_min(1); };
  return Blocks(sequences, is_plain(sequences) ? at::Tensor() : roots(), size, (longest + size - 1) / size);
}

at::Tensor Blocks::take(const at::Tensor& rows, int64_t heads) const {
  const auto width = rows.size(1) / heads;
  if (full_) {
    return rows.reshape({batch, count, size, heads, width}).permute({0, 3, 1, 2, 4});
  }
  at::Tensor grid;  // (B, blocks·size, H·w)
  if (plain_) {
    const auto tokens = sequences_.padded_length;
    grid = at::constant_pad_nd(rows.reshape({batch, tokens, rows.size(1)}), {0, 0, 0, count * size - tokens});
  } else if (rows.size(0) == 0 || batch == 0) {
    grid = rows.new_zeros({batch, count * size, rows.size(1)}) + rows.sum();
  } else {
    grid = move_rows(rows, row_at(), place_of());
  }
  return grid.reshape({batch, count, size, heads, width}).permute({0, 3, 1, 2, 4});
}

at::Tensor Blocks::give(const at::Tensor& blocks) const {
  const auto width = blocks.size(1) * blocks.size(4);
  const auto tokens = blocks.permute({0, 2, 3, 1, 4});
  if (full_) {
    return tokens.reshape({-1, width});
  }
  const auto grid = tokens.reshape({batch, count * size, width});
  if (plain_) {
    return grid.narrow(1, 0, sequences_.padded_length).reshape({-1, width});
  }
  if (grid.numel() == 0) {
    return grid.new_zeros({sequences_.rows, width}) + grid.sum();
  }
  return move_rows(grid.reshape({-1, width}), place_of(), row_at());
}

at::Tensor Blocks::keys_of(const at::Tensor& index, const at::Tensor& used) const {
  if (full_) {
    return used.repeat_interleave(size, 3).unsqueeze(3);
  }
  const auto token = index.unsqueeze(4) * size + torch::arange(size, numbers());
  const auto exists = token.lt(once(lengths()).view({-1, 1, 1, 1, 1}));
  return exists.logical_and(used.unsqueeze(4)).flatten(3).unsqueeze(3);
}

at::Tensor key_mask(const at::Tensor& valid) {
  return valid.defined() ? valid.unsqueeze(1).unsqueeze(3) : valid;
}

at::Tensor BlockList::of(const at::Tensor& blocks) const {
  const auto batch = blocks.size(0), heads = blocks.size(1), count = blocks.size(2);
  if (!row_.defined()) {
    row_ = ops::kept_tensor(ops::more_of(key_, "rows", {batch, heads, count}), index_.options(), [&] {
      const auto sequence =
          torch::arange(0, batch * count * heads, count * heads, index_.options()).view({-1, 1, 1, 1});
      const auto head = torch::arange(heads, index_.options()).view({-1, 1});
      return (index_.transpose(1, 2) * heads + (sequence + head)).flatten();  // (B, blocks, H, G)
    });
  }
  return is_transformed(blocks) ? listed(blocks, row_) : Listed::apply(blocks, row_);
}

at::Tensor masked_scores(const at::Tensor& scores, const at::Tensor& mask) {
  return mask.defined() ? scores.masked_fill(mask.logical_not(), low_score(scores.scalar_type())) : scores;
}

at::Tensor first_of(const at::Tensor& x, int64_t axis, int64_t count) {
  return count == x.size(axis) ? x : x.narrow(axis, 0, count);
}

at::Tensor first_tokens(const at::Tensor& blocks, int64_t first) {
  const auto tokens = blocks.flatten(2, 3);
  return first_of(tokens, 2, std::min(first, tokens.size(2)));
}

at::Tensor with_first_tokens(const at::Tensor& blocks, const at::Tensor& first) {
  const auto rest = blocks.flatten(2, 3).slice(2, first.size(2));
  return torch::cat({first, rest}, 2).unflatten(2, {blocks.size(2), blocks.size(3)});
}

Band::Band(const Blocks& blocks) {
  const auto options = blocks.numbers();
  const auto size = blocks.size, reach = blocks.count > 1 ? int64_t{1} : int64_t{0};
  mask = ops::kept_tensor(blocks.key("band"), options.dtype(at::kBool), [&] {
    const auto own = torch::arange(blocks.count * size, options).view({blocks.count, size, 1});
    const auto key = own.narrow(1, 0, 1) + torch::arange(-reach * size, (reach + 1) * size, options);
    const auto near = (own - key).abs_().le(size).logical_and_(key.ge(0));
    return near.logical_and(key.lt(blocks.once(blocks.lengths()).view({-1, 1, 1, 1}))).unsqueeze(1);
  });
  masks = mask.split(size, 4);
}

std::vector<at::Tensor> Band::beside(const at::Tensor& blocks) const {
  if (masks.size() == 1) {
    return {blocks};
  }
  const auto edged = at::constant_pad_nd(blocks.transpose(1, 2), {0, 0, 0, 0, 0, 0, 1, 1}).transpose(1, 2);
  return {edged.slice(2, 0, -2), edged.slice(2, 1, -1), edged.slice(2, 2)};
}

}  // namespace dba::zoo

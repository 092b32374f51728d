#include "ops/pieces.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>

#include "ops/checks.h"

namespace dba::ops {
namespace {

constexpr int64_t kShortestPiece = 16;
constexpr int64_t kLongestPiece = 256;
// Numbers in a tile: what stays in a CPU's caches, and what fills a GPU.
constexpr int64_t kTileOnCpu = 1 << 19;
constexpr int64_t kTileElsewhere = 1 << 25;

int64_t choose_piece_length(int64_t typical_length) {
  const auto length = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(typical_length, 1))));
  return std::clamp(length, kShortestPiece, kLongestPiece);
}

}  // namespace

Pieces::Pieces(const Sequences& sequences, int64_t width) : rows_(sequences.rows) {
  const auto batch = sequences.count();
  const auto begin = sequences.begin.to(at::kLong);
  const auto lengths = sequences.end.to(at::kLong) - begin;
  const bool on_cpu = begin.is_cpu();
  const auto typical = batch == 0 ? 0 : on_cpu ? lengths.max().item<int64_t>() : rows_ / batch / 4;
  piece_length_ = choose_piece_length(typical);

  const auto pieces_of = (lengths + (piece_length_ - 1)).floor_divide(piece_length_);
  const auto last = pieces_of.cumsum(0);  // one past the last piece of each sequence
  const auto count = batch == 0 || rows_ == 0 ? 0 : on_cpu ? last[-1].item<int64_t>() : rows_ / piece_length_ + batch;
  pieces_per_group_ = std::max<int64_t>((on_cpu ? kTileOnCpu : kTileElsewhere) / (piece_length_ * width), 1);

  const auto piece = at::arange(count, begin.options());
  sequence_ =
      at::searchsorted(last, piece, /*out_int32=*/false, /*right=*/true).clamp_max(std::max<int64_t>(batch, 1) - 1);
  if (count == 0) {
    first_token_ = piece;
    row_ = at::zeros({0, piece_length_}, begin.options());
    valid_ = row_.to(at::kBool);
    return;
  }
  const auto first_piece = (last - pieces_of).index_select(0, sequence_);
  first_token_ = (piece - first_piece) * piece_length_;
  const auto token = first_token_.unsqueeze(1) + at::arange(piece_length_, begin.options());
  // A spare piece counts on past the end of the last sequence, so this refuses its tokens too.
  valid_ = token.lt(lengths.index_select(0, sequence_).unsqueeze(1));
  const auto row = begin.index_select(0, sequence_).unsqueeze(1) + token;
  row_ = at::where(valid_, row, at::full({}, rows_, begin.options()));
}

Tile Pieces::tile(int64_t group, const at::Tensor& x) const {
  const auto first = group * pieces_per_group_;
  const auto size = std::min(pieces_per_group_, count() - first);
  Tile tile;
  tile.first_piece = first;
  tile.valid = valid_.narrow(0, first, size).unsqueeze(2);
  tile.row = row_.narrow(0, first, size).reshape({-1});
  tile.sequence = sequence_.narrow(0, first, size);
  tile.first_token = first_token_.narrow(0, first, size);
  tile.x = gather(tile, x, accumulation_type(x.scalar_type()));
  return tile;
}

at::Tensor Pieces::gather(const Tile& tile, const at::Tensor& rows, at::ScalarType type) const {
  const auto taken = rows.index_select(0, tile.row.clamp_max(rows_ - 1)).to(type);
  return taken.view({-1, piece_length_, rows.size(1)}).masked_fill_(tile.valid.logical_not(), 0);
}

TokenRows::TokenRows(const at::Tensor& like, int64_t width)
    : storage_(at::zeros({like.size(0) + 1, width}, like.options())) {}

void TokenRows::write(const Tile& tile, const at::Tensor& values) {
  storage_.index_copy_(0, tile.row, values.reshape({-1, storage_.size(1)}).to(storage_.scalar_type()));
}

at::Tensor TokenRows::rows() const {
  return storage_.narrow(0, 0, storage_.size(0) - 1);
}

at::Tensor tile_mask(const Dropout& dropout, Site site, const Tile& tile, int64_t slots) {
  return dropout_mask(dropout, site, tile.sequence, tile.first_token, tile.x.size(1), slots, tile.x.scalar_type());
}

}  // namespace dba::ops

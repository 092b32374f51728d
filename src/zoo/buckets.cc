#include "zoo/buckets.h"

#include <torch/torch.h>

#include <algorithm>
#include <optional>

namespace dba::zoo {
namespace {

using at::Tensor;

/// Sums of consecutive rows of `table`, one from each of `first` on to the next.
Tensor sums_from(const Tensor& table, const Tensor& rows, const Tensor& first) {
  return std::get<0>(at::_embedding_bag_forward_only(table, rows, first));
}

/// 0, step, 2·step, …: a column of `count`.
Tensor steps(int64_t count, int64_t step, const Tensor& like) {
  return torch::arange(0, count * step, step, like.options()).unsqueeze(1);
}

}  // namespace

int64_t Buckets::blocks_of(int64_t n, int64_t buckets, int64_t size) {
  return (n + (size - 1) * std::min(n, buckets)) / size;
}

Buckets::Buckets(const Tensor& codes, int64_t buckets, int64_t size)
    : groups_(codes.size(0)),
      n_(codes.size(1)),
      hashes_(codes.size(2)),
      buckets_(buckets),
      size_(size),
      blocks_(blocks_of(n_, buckets, size)) {
  const auto numbers =
      codes.transpose(1, 2).to(at::kInt).bitwise_and(0xffff).reshape({groups_ * hashes_, n_}).contiguous();
  const auto [sorted, order] = numbers.sort(std::optional(true), /*dim=*/1);
  const auto options = order.options();
  const auto numbered = torch::arange(buckets, numbers.options()).expand({sorted.size(0), buckets}).contiguous();
  const auto end = torch::searchsorted(sorted, numbered, /*out_int32=*/false, /*right=*/true);  // in the order
  const auto begin = at::constant_pad_nd(end.narrow(1, 0, buckets - 1), {1, 0});
  const auto last = (end - begin + (size - 1)).div_(size, "floor").cumsum(1);
  first_ = at::constant_pad_nd(last.narrow(1, 0, buckets - 1), {1, 0});
  const auto row = (first_ * size - begin).gather(1, sorted.to(at::kLong)) + torch::arange(n_, options);
  token_ = torch::full({sorted.size(0), blocks_ * size}, n_, options).scatter_(1, row, order);
  row_ = torch::empty_like(order).scatter_(1, order, row);
  // Blocks that nobody needs are behind the last bucket's; their rows are zeros, and none is looked up.
  const auto block = torch::arange(blocks_, options).expand({sorted.size(0), blocks_}).contiguous();
  bucket_ = torch::searchsorted(last, block, /*out_int32=*/false, /*right=*/true).clamp_max_(buckets - 1);
}

Tensor Buckets::laid_out(const Tensor& rows) const {
  const auto and_zeros = at::constant_pad_nd(rows, {0, 0, 0, 1}).flatten(0, 1);  // (G·(n + 1), w)
  const auto group = steps(groups_, n_ + 1, token_).unsqueeze(2);
  const auto from = token_.unflatten(0, {groups_, hashes_}) + group;
  return and_zeros.index_select(0, from.flatten()).view({-1, size_, rows.size(2)});
}

Tensor Buckets::tables(const Tensor& a, const Tensor& b) const {
  const auto of_blocks = torch::bmm(a.transpose(1, 2), b);
  const auto first = (first_ + steps(first_.size(0), blocks_, first_)).flatten();
  const auto all = torch::arange(of_blocks.size(0), first.options());
  return sums_from(of_blocks.flatten(1), all, first).view({-1, a.size(2), b.size(2)});
}

Tensor Buckets::look_up(const Tensor& a, const Tensor& tables) const {
  const auto table = (bucket_ + steps(bucket_.size(0), buckets_, bucket_)).flatten();
  const auto found = torch::bmm(a, tables.index_select(0, table)).flatten(0, 1);
  const auto row = (row_ + steps(row_.size(0), blocks_ * size_, row_)).view({groups_, hashes_, n_});
  const auto first = torch::arange(0, row.numel(), hashes_, row.options());
  return sums_from(found, row.transpose(1, 2).flatten(), first).view({groups_, n_, -1});
}

std::tuple<Tensor, Tensor> sums_within_buckets(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dy,
                                               const Tensor& code_q, const Tensor& code_k, int64_t buckets,
                                               at::ScalarType type, int64_t at_once) {
  const auto groups = q.size(0), hashes = code_q.size(2), width = q.size(2);
  const auto size = rows_of_bucket_block(q.device());
  const auto blocks = Buckets::blocks_of(q.size(1), buckets, size) + Buckets::blocks_of(k.size(1), buckets, size);
  constexpr int64_t kIndices = 20;  // for a row, in numbers
  const auto column = std::max(blocks, 2 * buckets) * width, rows = blocks * size * (2 * width + kIndices);
  // A few columns of wide tables at a time: no more than some copies of the tokens.
  const auto most = std::max(at_once, 16 * width * (q.size(1) + k.size(1)));
  const auto some_columns = std::clamp<int64_t>(most / column, 1, width);
  const auto units = std::max<int64_t>(at_once / (rows + some_columns * column), 1);
  const auto some_groups = std::min(units, groups), some_hashes = std::clamp<int64_t>(units / some_groups, 1, hashes);
  auto for_q = torch::zeros_like(q), for_k = torch::zeros_like(k);
  for (int64_t group = 0; group < groups; group += some_groups) {
    const auto of = [&](const Tensor& x) { return x.narrow(0, group, std::min(some_groups, groups - group)); };
    for (int64_t hash = 0; hash < hashes; hash += some_hashes) {
      const auto sorted = [&](const Tensor& codes) {
        return Buckets(of(codes).narrow(2, hash, std::min(some_hashes, hashes - hash)), buckets, size);
      };
      const auto asking = sorted(code_q), asked = sorted(code_k);
      const auto given = asking.laid_out(of(dy).to(type)), values = asked.laid_out(of(v).to(type));
      for (int64_t first = 0; first < width; first += some_columns) {
        const auto part = [&](const Tensor& x) {
          return of(x).narrow(2, first, std::min(some_columns, width - first));
        };
        part(for_q).add_(asking.look_up(given, asked.tables(values, asked.laid_out(part(k).to(type)))));
        part(for_k).add_(asked.look_up(values, asking.tables(given, asking.laid_out(part(q).to(type)))));
      }
    }
  }
  return {for_q, for_k};
}

int64_t rows_of_bucket_block(at::Device device) {
  return device.is_cpu() ? 8 : 16;
}

}  // namespace dba::zoo

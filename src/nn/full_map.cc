#include "nn/full_map.h"

#include <ATen/ops/_flash_attention_forward.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "nn/padded.h"
#include "nn/transient_map.h"

namespace dba {
namespace {

using at::Tensor;

// (…, n, H·w) → (…, H, n, w)
Tensor split_heads(const Tensor& rows, int64_t heads) {
  auto sizes = rows.sizes().vec();
  sizes.back() = heads;
  sizes.push_back(rows.size(-1) / heads);
  return rows.view(sizes).transpose(-3, -2);
}

Tensor join_heads(const Tensor& rows) {
  return rows.transpose(-3, -2).flatten(-2);
}

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads, double dropout,
              const std::optional<Tensor>& mask = {}) {
  const auto queries = split_heads(q, heads), keys = split_heads(k, heads), values = split_heads(v, heads);
  if (dropout > 0 && queries.is_cpu()) {  // PyTorch would keep the map, n × n
    const auto hidden = mask ? mask->unsqueeze(2) : Tensor();
    return join_heads(
        transient_map_attention(queries.unsqueeze(2), {{keys.unsqueeze(2), values.unsqueeze(2), hidden}}, dropout)
            .squeeze(2));
  }
  return join_heads(at::scaled_dot_product_attention(queries, keys, values, mask, dropout));
}

/// Whether padding costs less than a round of calls for every sequence: where they are short and of about one length.
bool better_padded(const Sequences& sequences) {
  constexpr int64_t kShort = 256;
  constexpr int64_t kMostPadding = 2;  // padded tokens for every real one
  const auto longest = sequences.longest();
  return longest <= kShort && sequences.count() * longest <= kMostPadding * sequences.rows;
}

Tensor one_by_one(const Tensor& q, const Tensor& k, const Tensor& v, const Sequences& sequences, int64_t heads,
                  double dropout) {
  const auto begin = sequences.begin.accessor<int64_t, 1>();
  const auto end = sequences.end.accessor<int64_t, 1>();
  std::vector<Tensor> parts;
  int64_t done = 0;
  const auto gap = [&](int64_t until) {
    if (until > done) {
      parts.push_back(v.new_zeros({until - done, v.size(1)}));
    }
  };
  for (int64_t b = 0; b < sequences.count(); ++b) {
    const auto length = end[b] - begin[b];
    if (length == 0) {
      continue;
    }
    gap(begin[b]);
    const auto part = [&](const Tensor& rows) { return rows.narrow(0, begin[b], length).unsqueeze(0); };
    parts.push_back(attend(part(q), part(k), part(v), heads, dropout).squeeze(0));
    done = end[b];
  }
  gap(sequences.rows);
  return parts.empty() ? v.narrow(0, 0, 0) : torch::cat(parts);
}

bool flash_takes_packed(const Tensor& q, const Tensor& v, const Sequences& sequences, int64_t heads) {
  const auto width = q.size(1) / heads;
  const bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  return q.is_cuda() && half && sequences.consecutive && sequences.max_length >= 0 && sequences.count() > 0 &&
         width == v.size(1) / heads && width % 8 == 0 && width <= 256;
}

Tensor flash_packed(const Tensor& q, const Tensor& k, const Tensor& v, const Sequences& sequences, int64_t heads,
                    double dropout) {
  // The kernel leaves rows of nobody unwritten, in its result and in all three gradients.
  const auto nobody = sequences.row_mask().logical_not().unsqueeze(1);
  const auto by_head = [&](const Tensor& rows) {
    return rows.masked_fill(nobody, 0).view({rows.size(0), heads, rows.size(1) / heads});
  };
  const auto bounds = torch::cat({sequences.begin, sequences.end.slice(0, -1)}).to(at::kInt);
  const auto out = std::get<0>(at::_flash_attention_forward(by_head(q), by_head(k), by_head(v), bounds, bounds,
                                                            sequences.max_length, sequences.max_length, dropout,
                                                            /*is_causal=*/false, /*return_debug_mask=*/false));
  return out.flatten(1).masked_fill(nobody, 0);
}

Tensor through_padding(const Tensor& q, const Tensor& k, const Tensor& v, const Sequences& sequences, int64_t heads,
                       double dropout) {
  const Padded padded(sequences);
  // A token that does not exist may look at itself, so that no row of the map is empty.
  const auto self = torch::eye(padded.length, padded.valid.options());
  const auto mask = padded.valid.unsqueeze(1).logical_or(self).unsqueeze(1);  // (B, 1, n, n)
  return padded.unpad(attend(padded.pad(q), padded.pad(k), padded.pad(v), heads, dropout, mask));
}

}  // namespace

at::Tensor full_map_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Sequences& sequences,
                              int64_t heads, double dropout) {
  if (v.size(0) == 0) {  // scaled_dot_product_attention of no tokens would depend on none
    return v;
  }
  if (is_plain(sequences)) {
    const auto batched = [&](const Tensor& rows) {
      return rows.view({sequences.count(), sequences.padded_length, rows.size(1)});
    };
    return attend(batched(q), batched(k), batched(v), heads, dropout).flatten(0, 1);
  }
  if (sequences.begin.is_cpu() && !better_padded(sequences)) {
    return one_by_one(q, k, v, sequences, heads, dropout);
  }
  if (flash_takes_packed(q, v, sequences, heads)) {
    return flash_packed(q, k, v, sequences, heads, dropout);
  }
  return through_padding(q, k, v, sequences, heads, dropout);
}

at::Tensor full_map_weights(const at::Tensor& q, const at::Tensor& k, const Sequences& sequences, int64_t heads) {
  const Padded padded(sequences);
  const auto queries = split_heads(padded.pad(q), heads);
  const auto keys = split_heads(padded.pad(k), heads);
  const auto scale = 1.0 / std::sqrt(static_cast<double>(queries.size(3)));
  const auto scores = torch::matmul(queries, keys.transpose(2, 3)) * scale;
  const auto valid = padded.valid;
  const auto column = valid.unsqueeze(1).unsqueeze(1);
  const auto row = valid.unsqueeze(1).unsqueeze(3);
  return scores.masked_fill(column.logical_not(), -std::numeric_limits<double>::infinity())
      .softmax(3)
      .masked_fill(row.logical_and(column).logical_not(), 0);
}

}  // namespace dba

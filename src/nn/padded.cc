#include "nn/padded.h"

#include <torch/torch.h>

#include "ops/checks.h"

namespace dba {

Padded::Padded(const Sequences& sequences)
    : length(sequences.longest()), lengths(sequences.lengths()), sequences_(sequences) {
  const auto token = torch::arange(length, sequences.begin.options());
  valid = token.unsqueeze(0).lt(lengths.unsqueeze(1));
  row_ = (sequences.begin.unsqueeze(1) + token).masked_fill(valid.logical_not(), 0).flatten();
}

at::Tensor Padded::pad(const at::Tensor& rows) const {
  const auto batch = sequences_.count();
  if (sequences_.rows == 0) {
    return rows.new_zeros({batch, length, rows.size(1)});
  }
  const auto taken = rows.index_select(0, row_).view({batch, length, rows.size(1)});
  return taken.masked_fill(valid.logical_not().unsqueeze(2), 0);
}

at::Tensor Padded::unpad(const at::Tensor& padded) const {
  const auto width = padded.size(2);
  if (padded.numel() == 0) {
    // No token anywhere: the (zero) sum only keeps the result in autograd's graph.
    return padded.new_zeros({sequences_.rows, width}) + padded.sum();
  }
  const auto sequence = sequences_.sequence_of_row();
  const auto place = sequence * length + sequences_.position_of_row();
  return padded.reshape({-1, width}).index_select(0, place.clamp_min(0)).masked_fill(sequence.lt(0).unsqueeze(1), 0);
}

at::Tensor token_rows(const char* module, const at::Tensor& x, const Sequences& sequences, int64_t d) {
  TORCH_CHECK(x.defined() && (x.dim() == 2 || x.dim() == 3) && x.size(-1) == d, "dba::", module,
              ": x must be of shape (N, ", d, ") or (B, n, ", d, "), got ", ops::describe(x));
  if (x.dim() == 3) {
    TORCH_CHECK(x.size(0) == sequences.count(), "dba::", module, ": x must have the ", sequences.count(),
                " sequences of its Sequences, got ", ops::describe(x));
  }
  const auto rows = x.reshape({-1, d});
  TORCH_CHECK(rows.size(0) == sequences.rows, "dba::", module, ": x must have the ", sequences.rows,
              " rows of its sequences, got ", ops::describe(x));
  TORCH_CHECK(sequences.begin.device() == x.device(), "dba::", module, ": sequences must be on x's device ", x.device(),
              ", got ", sequences.begin.device());
  return rows;
}

at::Tensor zero_rows_of_nobody(const at::Tensor& rows, const Sequences& sequences) {
  if (sequences.consecutive && sequences.padded_length >= 0) {
    return rows;
  }
  return rows.masked_fill(sequences.row_mask().logical_not().unsqueeze(1), 0);
}

}  // namespace dba

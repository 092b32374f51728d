#include "nn/padded.h"

#include <torch/torch.h>

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

}  // namespace dba

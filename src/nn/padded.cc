#include "nn/padded.h"

#include <torch/torch.h>

#include "nn/transformed.h"

namespace dba {
namespace {

/// Row index[i] of the given ones at place i, zeros where the index is −1.
at::Tensor rows_at(const at::Tensor& rows, const at::Tensor& index) {
  if (rows.size(0) == 0) {  // nothing to point at
    return rows.new_zeros({index.size(0), rows.size(1)});
  }
  return rows.index_select(0, index.clamp_min(0)).masked_fill(index.lt(0).unsqueeze(1), 0);
}

/// The gradient moves the rows back. That of index_select would add them up, which a GPU does in a repeatable order
/// only after sorting, and all places without a row after one another.
class MoveRows : public torch::autograd::Function<MoveRows> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& rows, const at::Tensor& there,
                            const at::Tensor& back) {
    context->save_for_backward({there, back});
    return rows_at(rows, there);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {MoveRows::apply(gradients[0], saved[1], saved[0]), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor move_rows(const at::Tensor& rows, const at::Tensor& there, const at::Tensor& back) {
  return is_transformed(rows) ? rows_at(rows, there) : MoveRows::apply(rows, there, back);
}

Padded::Padded(const Sequences& sequences)
    : length(sequences.longest()), lengths(sequences.lengths()), full(is_plain(sequences)), sequences_(sequences) {
  const auto token = torch::arange(length, sequences.begin.options());
  valid = token.unsqueeze(0).lt(lengths.unsqueeze(1));
  if (!full) {
    row_ = (sequences.begin.unsqueeze(1) + token).masked_fill(valid.logical_not(), -1).flatten();
    const auto sequence = sequences.sequence_of_row();
    place_ = torch::where(sequence.ge(0), sequence * length + sequences.position_of_row(), sequence);
  }
}

at::Tensor Padded::pad(const at::Tensor& rows) const {
  const auto batch = sequences_.count();
  if (full) {
    return rows.reshape({batch, length, rows.size(1)});
  }
  if (sequences_.rows == 0) {
    return rows.new_zeros({batch, length, rows.size(1)});
  }
  return move_rows(rows, row_, place_).view({batch, length, rows.size(1)});
}

at::Tensor Padded::unpad(const at::Tensor& padded) const {
  const auto width = padded.size(2);
  if (full) {
    return padded.reshape({-1, width});
  }
  if (padded.numel() == 0) {
    // No token anywhere: the (zero) sum only keeps the result in autograd's graph.
    return padded.new_zeros({sequences_.rows, width}) + padded.sum();
  }
  return move_rows(padded.reshape({-1, width}), place_, row_);
}

}  // namespace dba

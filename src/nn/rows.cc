#include "nn/rows.h"

#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "ops/checks.h"

namespace dba {

at::Tensor as_rows(const char* function, const char* argument, const at::Tensor& x, const Sequences& sequences,
                   int64_t width) {
  TORCH_CHECK(x.defined() && (x.dim() == 2 || x.dim() == 3) && x.size(-1) == width, "dba::", function, ": ", argument,
              " must be (N, ", width, ") or (B, n, ", width, "), got ", ops::describe(x));
  TORCH_CHECK(sequences.begin.device() == x.device(), "dba::", function, ": `sequences` must be on the device of ",
              argument, ", ", x.device(), ", got ", sequences.begin.device());
  if (x.dim() == 2) {
    TORCH_CHECK(x.size(0) == sequences.rows, "dba::", function, ": ", argument, " must have the ", sequences.rows,
                " rows that `sequences` was made for, got ", ops::describe(x));
    return x;
  }
  const bool same_padding = sequences.padded_length < 0 || sequences.padded_length == x.size(1);
  TORCH_CHECK(x.size(0) * x.size(1) == sequences.rows && same_padding, "dba::", function, ": ", argument,
              " must be a batch of the ", sequences.rows, " rows (", sequences.count(), " sequences padded to ",
              sequences.padded_length, ") that `sequences` was made for, got ", ops::describe(x));
  return x.reshape({sequences.rows, width});
}

Sequences plain_batch(const char* function, const char* argument, const at::Tensor& batch, int64_t dimensions) {
  TORCH_CHECK(batch.defined() && batch.dim() == dimensions, "dba::", function, ": ", argument,
              " without `sequences` must be a plain batch (B, n", dimensions == 3 ? ", width" : "", "), got ",
              ops::describe(batch), "; packed or padded sequences come with a dba::Sequences");
  return Sequences::dense(batch.size(0), batch.size(1), batch.device());
}

at::Tensor real_rows(const Sequences& sequences) {
  const bool plain = sequences.consecutive && sequences.padded_length >= 0;
  return plain ? at::Tensor() : sequences.row_mask();
}

at::Tensor clear_rows(const at::Tensor& rows, const at::Tensor& row_mask) {
  if (!row_mask.defined()) {
    return rows;
  }
  const auto mask = rows.dim() == 1 ? row_mask : row_mask.unsqueeze(-1);
  return at::where(mask, rows, at::zeros({}, rows.options()));
}

void check_rate(const char* module, const char* option, double rate) {
  TORCH_CHECK(rate >= 0.0 && rate < 1.0, "dba::", module, ": ", option, " must lie in [0, 1), got ", rate);
}

void check_positive(const char* module, const char* option, int64_t value) {
  TORCH_CHECK(value > 0, "dba::", module, ": ", option, " must be positive, got ", value);
}

}  // namespace dba

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/reference/passes.h"
#include "ops/reference/reference.h"
#include "ops/signatures.h"

namespace dba::ops {
namespace {

using at::Tensor;

Tensor restore_kernel(const Tensor& x, const Tensor& begin, const Tensor& end, const Tensor& rows, const Optional& bias,
                      const Tensor& m, const Optional& out_bias, int64_t heads, bool linear, double p,
                      const Optional& rng) {
  const SettledTypes settled;
  const auto sequences = sequences_of(x, begin, end);
  const auto dropout = dropout_of(p, rng);
  check_restore("restore", x, sequences, rows, value_or_absent(bias), m, value_or_absent(out_bias), heads);
  check_dropout("restore", dropout, x.device());
  require_reference_allowed("restore", x);
  return reference::restore(x, sequences, rows, value_or_absent(bias), m, value_or_absent(out_bias), heads, linear,
                            dropout);
}

Tensor restore_meta(const Tensor& x, const Tensor& begin, const Tensor& end, const Tensor& rows, const Optional& bias,
                    const Tensor& m, const Optional& out_bias, int64_t heads, bool /*linear*/, double p,
                    const Optional& rng) {
  check_restore("restore", x, sequences_of(x, begin, end), rows, value_or_absent(bias), m, value_or_absent(out_bias),
                heads);
  check_dropout("restore", dropout_of(p, rng), x.device());
  return at::empty({x.size(0), m.size(2)}, x.options());
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> restore_backward_kernel(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Tensor& rows, const Optional& bias, const Tensor& m,
    const Optional& out_bias, int64_t heads, bool linear, double p, const Optional& rng, const Tensor& dy) {
  const SettledTypes settled;
  const auto sequences = sequences_of(x, begin, end);
  const reference::RestoreBackward given{
      reference::restore_score_rows(rows, value_or_absent(bias)), m, heads, linear, dropout_of(p, rng), dy};
  auto [dm, dout_bias] = reference::slot_pass(x, sequences, given);
  const auto gradients = reference::token_pass(x, sequences, std::nullopt, given);
  return {gradients.dx, gradients.restore_rows.to(rows.scalar_type()),
          bias.has_value() ? gradients.restore_bias.to(bias->scalar_type()) : Tensor(), dm.to(m.scalar_type()),
          out_bias.has_value() ? dout_bias.to(out_bias->scalar_type()) : Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> restore_backward_meta(
    const Tensor& x, const Tensor& /*begin*/, const Tensor& /*end*/, const Tensor& rows, const Optional& bias,
    const Tensor& m, const Optional& out_bias, int64_t /*heads*/, bool /*linear*/, double /*p*/,
    const Optional& /*rng*/, const Tensor& /*dy*/) {
  const auto like = [](const Optional& tensor) { return tensor.has_value() ? at::empty_like(*tensor) : Tensor(); };
  return {at::empty(x.sizes(), x.options()), at::empty_like(rows), like(bias), at::empty_like(m), like(out_bias)};
}

}  // namespace

Tensor restore(const Tensor& x, const Sequences& sequences, const Tensor& rows, const Tensor& bias, const Tensor& m,
               const Tensor& out_bias, int64_t heads, bool linear, const Dropout& dropout) {
  check_rows("restore", x, sequences);
  static const auto op = typed_operator<signature::Restore>("dba::restore");
  return op.call(x, sequences.begin, sequences.end, rows, optional(bias), m, optional(out_bias), heads, linear,
                 dropout.p, optional(dropout.rng));
}

TORCH_LIBRARY_IMPL(dba, CompositeExplicitAutograd, m) {
  m.impl("restore", restore_kernel);
  m.impl("restore_backward", restore_backward_kernel);
}

TORCH_LIBRARY_IMPL(dba, Meta, m) {
  m.impl("restore", restore_meta);
  m.impl("restore_backward", restore_backward_meta);
}

}  // namespace dba::ops

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logaddexp.h>
#include <torch/library.h>

#include <limits>

#include "ops/checks.h"
#include "ops/reference/passes.h"
#include "ops/reference/reference.h"
#include "ops/signatures.h"

namespace dba::ops {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor, Tensor> compress_kernel(const Tensor& x, const Tensor& begin, const Tensor& end,
                                                   const Optional& each, const Optional& each_bias,
                                                   const Optional& shared, const Optional& shared_bias, int64_t linear,
                                                   double p, const Optional& rng) {
  const SettledTypes settled;
  const auto sequences = sequences_of(x, begin, end);
  const auto rows = score_rows(each, each_bias, shared, shared_bias, linear);
  const auto dropout = dropout_of(p, rng);
  check_compress(x, sequences, rows, dropout);
  require_reference_allowed("compress", x);
  const auto summary = reference::compress(x, sequences, rows, dropout);
  return {summary.c, summary.r, summary.lse};
}

std::tuple<Tensor, Tensor, Tensor> compress_meta(const Tensor& x, const Tensor& begin, const Tensor& end,
                                                 const Optional& each, const Optional& each_bias,
                                                 const Optional& shared, const Optional& shared_bias, int64_t linear,
                                                 double p, const Optional& rng) {
  const auto rows = score_rows(each, each_bias, shared, shared_bias, linear);
  check_compress(x, sequences_of(x, begin, end), rows, dropout_of(p, rng));
  const auto batch = begin.size(0);
  const auto count = (rows.each.defined() ? rows.each.size(1) : 0) + (rows.shared.defined() ? rows.shared.size(0) : 0);
  const auto options = x.options().dtype(accumulation_type(x.scalar_type()));
  return {at::empty({batch, count, x.size(1)}, options), at::empty({batch, count}, options),
          at::empty({batch, count}, options)};
}

Tensor as_type_of(const Tensor& gradient, const Optional& operand) {
  return gradient.defined() ? gradient.to(operand->scalar_type()) : gradient;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> compress_backward_kernel(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t linear, double p, const Optional& rng, const Tensor& c,
    const Tensor& r, const Tensor& lse, const Optional& dc, const Optional& dr, const Optional& dlse) {
  const SettledTypes settled;
  const auto gradients = reference::token_pass(
      x, sequences_of(x, begin, end),
      reference::CompressBackward{score_rows(each, each_bias, shared, shared_bias, linear), dropout_of(p, rng),
                                  Summary{c, r, lse}, value_or_absent(dc), value_or_absent(dr), value_or_absent(dlse)},
      std::nullopt);
  return {gradients.dx, as_type_of(gradients.each, each), as_type_of(gradients.each_bias, each_bias),
          as_type_of(gradients.shared, shared), as_type_of(gradients.shared_bias, shared_bias)};
}

Tensor empty_like_optional(const Optional& tensor) {
  return tensor.has_value() ? at::empty_like(*tensor) : Tensor();
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> compress_backward_meta(
    const Tensor& x, const Tensor& /*begin*/, const Tensor& /*end*/, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t /*linear*/, double /*p*/, const Optional& /*rng*/,
    const Tensor& /*c*/, const Tensor& /*r*/, const Tensor& /*lse*/, const Optional& /*dc*/, const Optional& /*dr*/,
    const Optional& /*dlse*/) {
  return {at::empty(x.sizes(), x.options()), empty_like_optional(each), empty_like_optional(each_bias),
          empty_like_optional(shared), empty_like_optional(shared_bias)};
}

}  // namespace

Summary compress(const Tensor& x, const Sequences& sequences, const ScoreRows& rows, const Dropout& dropout) {
  check_rows("compress", x, sequences);
  static const auto op = typed_operator<signature::Compress>("dba::compress");
  auto [c, r, lse] =
      op.call(x, sequences.begin, sequences.end, optional(rows.each), optional(rows.each_bias), optional(rows.shared),
              optional(rows.shared_bias), rows.linear, dropout.p, optional(dropout.rng));
  return {c, r, lse};
}

Summary merge(const Summary& a, const Summary& b) {
  check_shape("merge", "b.c", b.c, a.c.sizes());
  check_shape("merge", "b.r", b.r, a.r.sizes());
  check_shape("merge", "b.lse", b.lse, a.lse.sizes());
  constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
  // Two empty parts: keep −inf out of the differences, so that values and gradients stay finite.
  const auto empty = a.lse.eq(minus_infinity).logical_and(b.lse.eq(minus_infinity));
  const auto lse_a = a.lse.masked_fill(empty, 0);
  const auto lse_b = b.lse.masked_fill(empty, 0);
  const auto lse = at::logaddexp(lse_a, lse_b);
  const auto share_a = (lse_a - lse).exp();
  const auto share_b = (lse_b - lse).exp();
  return {share_a.unsqueeze(2) * a.c + share_b.unsqueeze(2) * b.c, share_a * a.r + share_b * b.r,
          lse.masked_fill(empty, minus_infinity)};
}

TORCH_LIBRARY_IMPL(dba, CompositeExplicitAutograd, m) {
  m.impl("compress", compress_kernel);
  m.impl("compress_backward", compress_backward_kernel);
}

TORCH_LIBRARY_IMPL(dba, Meta, m) {
  m.impl("compress", compress_meta);
  m.impl("compress_backward", compress_backward_meta);
}

}  // namespace dba::ops

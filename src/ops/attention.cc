#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/attention.h"
#include "ops/checks.h"
#include "ops/reference/passes.h"
#include "ops/signatures.h"

namespace dba::ops {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor> attention_kernel(const Tensor& x, const Tensor& begin, const Tensor& end,
                                            const Optional& each, const Optional& each_bias, const Optional& shared,
                                            const Optional& shared_bias, int64_t linear_rows,
                                            const OptionalList& weights, const Tensor& restore_rows,
                                            const Optional& restore_bias, const Optional& out_bias, int64_t heads,
                                            bool linear, double p, const Optional& rng) {
  static const auto op = typed_operator<signature::AttentionForward>("dba::attention_forward");
  const auto result = op.call(x, begin, end, each, each_bias, shared, shared_bias, linear_rows, weights, restore_rows,
                              restore_bias, out_bias, heads, linear, p, rng);
  return {std::get<0>(result), std::get<1>(result)};
}

std::tuple<Tensor, Tensor> backward_slots_kernel(const Tensor& x, const Tensor& begin, const Tensor& end,
                                                 const Tensor& restore_rows, const Optional& restore_bias,
                                                 const Optional& out_bias, int64_t heads, bool linear, double p,
                                                 const Optional& rng, const Tensor& dy) {
  const SettledTypes settled;
  auto [dm, dout_bias] =
      reference::slot_pass(x, sequences_of(x, begin, end),
                           {reference::restore_score_rows(restore_rows, value_or_absent(restore_bias)),
                            {},
                            heads,
                            linear,
                            dropout_of(p, rng),
                            dy});
  return {dm, out_bias.has_value() ? dout_bias.to(out_bias->scalar_type()) : Tensor()};
}

std::vector<Tensor> attention_backward_meta(const Tensor& x, const Tensor& /*begin*/, const Tensor& /*end*/,
                                            const Optional& each, const Optional& each_bias, const Optional& shared,
                                            const Optional& shared_bias, int64_t /*linear_rows*/,
                                            const OptionalList& weights, const Tensor& restore_rows,
                                            const Optional& restore_bias, const Optional& out_bias, int64_t /*heads*/,
                                            bool /*linear*/, double /*p*/, const Optional& /*rng*/, const Tensor& /*c*/,
                                            const Tensor& /*r*/, const Tensor& /*lse*/, const Tensor& /*m*/,
                                            const Tensor& /*dy*/, const Optional& /*dcompressed*/) {
  std::vector<Tensor> gradients{at::empty(x.sizes(), x.options())};
  const auto add = [&](const Optional& operand) {
    if (operand.has_value() && operand->defined()) {
      gradients.push_back(at::empty_like(*operand));
    }
  };
  for (const auto* operand : {&each, &each_bias, &shared, &shared_bias}) {
    add(*operand);
  }
  add(restore_rows);
  add(restore_bias);
  add(out_bias);
  for (size_t i = 0; i < weights.size(); ++i) {
    add(weights.get(i));
  }
  return gradients;
}

std::tuple<Tensor, Tensor> backward_slots_meta(const Tensor& x, const Tensor& begin, const Tensor& /*end*/,
                                               const Tensor& restore_rows, const Optional& /*restore_bias*/,
                                               const Optional& out_bias, int64_t /*heads*/, bool /*linear*/,
                                               double /*p*/, const Optional& /*rng*/, const Tensor& dy) {
  const auto options = x.options().dtype(accumulation_type(x.scalar_type()));
  return {at::empty({begin.size(0), restore_rows.size(-2), dy.size(1)}, options),
          out_bias.has_value() ? at::empty_like(*out_bias) : Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> backward_tokens_kernel(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t linear_rows, const Tensor& restore_rows,
    const Optional& restore_bias, const Tensor& m, int64_t heads, bool linear, double p, const Optional& rng,
    const Tensor& c, const Tensor& r, const Tensor& lse, const Optional& dc, const Optional& dr, const Tensor& dy) {
  const SettledTypes settled;
  const auto dropout = dropout_of(p, rng);
  const auto gradients = reference::token_pass(
      x, sequences_of(x, begin, end),
      reference::CompressBackward{score_rows(each, each_bias, shared, shared_bias, linear_rows),
                                  dropout,
                                  Summary{c, r, lse},
                                  value_or_absent(dc),
                                  value_or_absent(dr),
                                  {}},
      reference::RestoreBackward{reference::restore_score_rows(restore_rows, value_or_absent(restore_bias)), m, heads,
                                 linear, dropout, dy});
  const auto typed = [](const Tensor& gradient, const Optional& operand) {
    return operand.has_value() ? gradient.to(operand->scalar_type()) : Tensor();
  };
  return {gradients.dx,
          typed(gradients.each, each),
          typed(gradients.each_bias, each_bias),
          typed(gradients.shared, shared),
          typed(gradients.shared_bias, shared_bias),
          typed(gradients.restore_rows, restore_rows),
          typed(gradients.restore_bias, restore_bias)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> backward_tokens_meta(
    const Tensor& x, const Tensor& /*begin*/, const Tensor& /*end*/, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t /*linear_rows*/, const Tensor& restore_rows,
    const Optional& restore_bias, const Tensor& /*m*/, int64_t /*heads*/, bool /*linear*/, double /*p*/,
    const Optional& /*rng*/, const Tensor& /*c*/, const Tensor& /*r*/, const Tensor& /*lse*/, const Optional& /*dc*/,
    const Optional& /*dr*/, const Tensor& /*dy*/) {
  const auto like = [](const Optional& tensor) { return tensor.has_value() ? at::empty_like(*tensor) : Tensor(); };
  return {at::empty(x.sizes(), x.options()), like(each),        like(each_bias), like(shared), like(shared_bias),
          at::empty_like(restore_rows),      like(restore_bias)};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> attention_forward_in_passes(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t linear_rows, const OptionalList& weights,
    const Tensor& restore_rows, const Optional& restore_bias, const Optional& out_bias, int64_t heads, bool linear,
    double p, const Optional& rng) {
  const auto sequences = sequences_of(x, begin, end);
  const auto dropout = dropout_of(p, rng);
  const auto summary = compress(x, sequences, score_rows(each, each_bias, shared, shared_bias, linear_rows), dropout);
  const auto middle = core(summary.c, summary.r, core_weights(weights), heads, dropout);
  const auto y = restore(x, sequences, restore_rows, value_or_absent(restore_bias), middle.m, value_or_absent(out_bias),
                         heads, linear, dropout);
  const KeptMixture keeps(x, linear, p);
  auto m = middle.m;
  if (keeps.centred) {
    const auto by_head = m.unflatten(1, {heads, -1});
    m = (by_head - by_head.mean(2, /*keepdim=*/true)).flatten(1, 2);
  }
  return {y, middle.c, summary.c, summary.r, summary.lse, keeps.rounded ? m.to(x.scalar_type()) : m};
}

std::vector<Tensor> attention_backward_in_passes(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t linear_rows, const OptionalList& weights,
    const Tensor& restore_rows, const Optional& restore_bias, const Optional& out_bias, int64_t heads, bool linear,
    double p, const Optional& rng, const Tensor& c, const Tensor& r, const Tensor& lse, const Tensor& m,
    const Tensor& dy, const Optional& dcompressed) {
  const auto wide_m = m.to(accumulation_type(x.scalar_type()));
  static const auto slots = typed_operator<signature::AttentionBackwardSlots>("dba::attention_backward_slots");
  static const auto core = typed_operator<signature::CoreBackward>("dba::core_backward");
  static const auto tokens = typed_operator<signature::AttentionBackwardTokens>("dba::attention_backward_tokens");
  auto [dm, dout_bias] = slots.call(x, begin, end, restore_rows, restore_bias, out_bias, heads, linear, p, rng, dy);
  const auto of_core = core.call(c, r, weights, heads, p, rng, dm, dcompressed);
  auto [dx, deach, deach_bias, dshared, dshared_bias, drestore_rows, drestore_bias] =
      tokens.call(x, begin, end, each, each_bias, shared, shared_bias, linear_rows, restore_rows, restore_bias, wide_m,
                  heads, linear, p, rng, c, r, lse, of_core[0], of_core[1], dy);
  std::vector<Tensor> gradients;
  for (const auto& gradient : {dx, deach, deach_bias, dshared, dshared_bias, drestore_rows, drestore_bias, dout_bias}) {
    if (gradient.defined()) {
      gradients.push_back(gradient);
    }
  }
  gradients.insert(gradients.end(), of_core.begin() + 2, of_core.end());
  return gradients;
}

AttentionResult attention(const Tensor& x, const Sequences& sequences, const ScoreRows& rows,
                          const CoreWeights& weights, const Tensor& restore_rows, const Tensor& restore_bias,
                          const Tensor& out_bias, int64_t heads, bool linear, const Dropout& dropout) {
  check_rows("attention", x, sequences);
  static const auto op = typed_operator<signature::Attention>("dba::attention");
  auto [y, c] =
      op.call(x, sequences.begin, sequences.end, optional(rows.each), optional(rows.each_bias), optional(rows.shared),
              optional(rows.shared_bias), rows.linear, core_weight_list(weights), restore_rows, optional(restore_bias),
              optional(out_bias), heads, linear, dropout.p, optional(dropout.rng));
  return {y, c};
}

TORCH_LIBRARY_IMPL(dba, CompositeExplicitAutograd, m) {
  m.impl("attention", attention_kernel);
  m.impl("attention_forward", attention_forward_in_passes);
  m.impl("attention_backward", attention_backward_in_passes);
  m.impl("attention_backward_slots", backward_slots_kernel);
  m.impl("attention_backward_tokens", backward_tokens_kernel);
}

TORCH_LIBRARY_IMPL(dba, Meta, m) {
  m.impl("attention_backward", attention_backward_meta);
  m.impl("attention_backward_slots", backward_slots_meta);
  m.impl("attention_backward_tokens", backward_tokens_meta);
}

}  // namespace dba::ops

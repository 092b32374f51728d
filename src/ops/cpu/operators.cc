#include <torch/library.h>

#include "ops/checks.h"
#include "ops/cpu/core_pass.h"
#include "ops/cpu/passes.h"
#include "ops/cpu/token_matrix.h"
#include "ops/fused.h"
#include "ops/reference/reference.h"
#include "ops/signatures.h"

namespace dba::ops::cpu {
namespace {

using at::Tensor;

bool use_passes(const char* function, const Tensor& x) {
  return use_fused(function, type_obstacle(x.scalar_type()));
}

std::string core_obstacle(const Tensor& c) {
  const auto type = c.scalar_type();
  return type == at::kFloat || type == at::kDouble
             ? std::string()
             : std::string("c must be float32 or float64, got ") + c10::toString(type);
}

Tensor as_type_of(const Tensor& gradient, const Optional& operand) {
  return operand.has_value() && gradient.defined() ? gradient.to(operand->scalar_type()) : Tensor();
}

std::tuple<Tensor, Tensor, Tensor> compress_operator(const Tensor& x, const Tensor& begin, const Tensor& end,
                                                     const Optional& each, const Optional& each_bias,
                                                     const Optional& shared, const Optional& shared_bias,
                                                     int64_t linear, double p, const Optional& rng) {
  const SettledTypes settled;
  const auto sequences = sequences_of(x, begin, end);
  const auto rows = score_rows(each, each_bias, shared, shared_bias, linear);
  const auto dropout = dropout_of(p, rng);
  check_tokens("compress", "x", x, sequences);
  check_score_rows("compress", rows, x, sequences.count());
  check_dropout("compress", dropout, x.device());
  const auto summary = use_passes("compress", x) ? cpu::compress(x, sequences, rows, dropout)
                                                 : reference::compress(x, sequences, rows, dropout);
  return {summary.c, summary.r, summary.lse};
}

reference::TokenGradients token_gradients(const char* function, const Tensor& x, const Tensor& begin, const Tensor& end,
                                          const std::optional<reference::CompressBackward>& of_compress,
                                          const std::optional<reference::RestoreBackward>& of_restore) {
  const auto sequences = sequences_of(x, begin, end);
  return use_passes(function, x) ? cpu::token_pass(x, sequences, of_compress, of_restore)
                                 : reference::token_pass(x, sequences, of_compress, of_restore);
}

std::pair<Tensor, Tensor> slot_gradients(const char* function, const Tensor& x, const Tensor& begin, const Tensor& end,
                                         const reference::RestoreBackward& given) {
  const auto sequences = sequences_of(x, begin, end);
  return use_passes(function, x) ? cpu::slot_pass(x, sequences, given) : reference::slot_pass(x, sequences, given);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> compress_backward_operator(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t linear, double p, const Optional& rng, const Tensor& c,
    const Tensor& r, const Tensor& lse, const Optional& dc, const Optional& dr, const Optional& dlse) {
  const SettledTypes settled;
  const reference::CompressBackward given{score_rows(each, each_bias, shared, shared_bias, linear),
                                          dropout_of(p, rng),
                                          Summary{c, r, lse},
                                          value_or_absent(dc),
                                          value_or_absent(dr),
                                          value_or_absent(dlse)};
  const auto gradients = token_gradients("compress_backward", x, begin, end, given, std::nullopt);
  return {gradients.dx, as_type_of(gradients.each, each), as_type_of(gradients.each_bias, each_bias),
          as_type_of(gradients.shared, shared), as_type_of(gradients.shared_bias, shared_bias)};
}

Tensor restore_operator(const Tensor& x, const Tensor& begin, const Tensor& end, const Tensor& rows,
                        const Optional& bias, const Tensor& m, const Optional& out_bias, int64_t heads, bool linear,
                        double p, const Optional& rng) {
  const SettledTypes settled;
  const auto sequences = sequences_of(x, begin, end);
  const auto dropout = dropout_of(p, rng);
  check_restore("restore", x, sequences, rows, value_or_absent(bias), m, value_or_absent(out_bias), heads);
  check_dropout("restore", dropout, x.device());
  const auto run = use_passes("restore", x) ? cpu::restore : reference::restore;
  return run(x, sequences, rows, value_or_absent(bias), m, value_or_absent(out_bias), heads, linear, dropout);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> restore_backward_operator(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Tensor& rows, const Optional& bias, const Tensor& m,
    const Optional& out_bias, int64_t heads, bool linear, double p, const Optional& rng, const Tensor& dy) {
  const SettledTypes settled;
  const reference::RestoreBackward given{
      reference::restore_score_rows(rows, value_or_absent(bias)), m, heads, linear, dropout_of(p, rng), dy};
  const auto [dm, dout_bias] = slot_gradients("restore_backward", x, begin, end, given);
  const auto gradients = token_gradients("restore_backward", x, begin, end, std::nullopt, given);
  return {gradients.dx, gradients.restore_rows.to(rows.scalar_type()), as_type_of(gradients.restore_bias, bias),
          dm.to(m.scalar_type()), as_type_of(dout_bias, out_bias)};
}

std::tuple<Tensor, Tensor> backward_slots_operator(const Tensor& x, const Tensor& begin, const Tensor& end,
                                                   const Tensor& restore_rows, const Optional& restore_bias,
                                                   const Optional& out_bias, int64_t heads, bool linear, double p,
                                                   const Optional& rng, const Tensor& dy) {
  const SettledTypes settled;
  const reference::RestoreBackward given{reference::restore_score_rows(restore_rows, value_or_absent(restore_bias)),
                                         {},
                                         heads,
                                         linear,
                                         dropout_of(p, rng),
                                         dy};
  const auto [dm, dout_bias] = slot_gradients("attention_backward_slots", x, begin, end, given);
  return {dm, as_type_of(dout_bias, out_bias)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> backward_tokens_operator(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t linear_rows, const Tensor& restore_rows,
    const Optional& restore_bias, const Tensor& m, int64_t heads, bool linear, double p, const Optional& rng,
    const Tensor& c, const Tensor& r, const Tensor& lse, const Optional& dc, const Optional& dr, const Tensor& dy) {
  const SettledTypes settled;
  const auto dropout = dropout_of(p, rng);
  const reference::CompressBackward of_compress{score_rows(each, each_bias, shared, shared_bias, linear_rows),
                                                dropout,
                                                Summary{c, r, lse},
                                                value_or_absent(dc),
                                                value_or_absent(dr),
                                                {}};
  const reference::RestoreBackward of_restore{
      reference::restore_score_rows(restore_rows, value_or_absent(restore_bias)), m, heads, linear, dropout, dy};
  const auto gradients = token_gradients("attention_backward_tokens", x, begin, end, of_compress, of_restore);
  return {gradients.dx,
          as_type_of(gradients.each, each),
          as_type_of(gradients.each_bias, each_bias),
          as_type_of(gradients.shared, shared),
          as_type_of(gradients.shared_bias, shared_bias),
          gradients.restore_rows.to(restore_rows.scalar_type()),
          as_type_of(gradients.restore_bias, restore_bias)};
}

std::tuple<Tensor, Tensor> core_operator(const Tensor& c, const Tensor& r, const OptionalList& weights, int64_t heads,
                                         double p, const Optional& rng) {
  const SettledTypes settled;
  const auto dropout = dropout_of(p, rng);
  const auto parameters = core_weights(weights);
  check_core("core", c, r, parameters, heads);
  check_dropout("core", dropout, c.device());
  const auto run = use_fused("core", core_obstacle(c)) ? cpu::core : reference::core;
  const auto result = run(c, r, parameters, heads, dropout);
  return {result.m, result.c};
}

std::vector<Tensor> core_backward_operator(const Tensor& c, const Tensor& r, const OptionalList& weights, int64_t heads,
                                           double p, const Optional& rng, const Optional& dm,
                                           const Optional& dcompressed) {
  const SettledTypes settled;
  const auto parameters = core_weights(weights);
  const auto run = use_fused("core_backward", core_obstacle(c)) ? cpu::core_backward : reference::core_backward;
  const auto gradients =
      run(c, r, parameters, heads, dropout_of(p, rng), value_or_absent(dm), value_or_absent(dcompressed));
  std::vector<Tensor> result{gradients.dc, gradients.dr};
  for (const auto member : core_weight_members()) {
    if ((parameters.*member).defined()) {
      result.push_back((gradients.weights.*member).to((parameters.*member).scalar_type()));
    }
  }
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, CPU, m) {
  m.impl("core", core_operator);
  m.impl("core_backward", core_backward_operator);
  m.impl("compress", compress_operator);
  m.impl("compress_backward", compress_backward_operator);
  m.impl("restore", restore_operator);
  m.impl("restore_backward", restore_backward_operator);
  m.impl("attention_backward_slots", backward_slots_operator);
  m.impl("attention_backward_tokens", backward_tokens_operator);
}

}  // namespace dba::ops::cpu

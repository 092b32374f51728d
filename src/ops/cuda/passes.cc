#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "ops/attention.h"
#include "ops/checks.h"
#include "ops/cuda/core_fused.h"
#include "ops/cuda/pass_calls.h"
#include "ops/cuda/pass_operands.h"
#include "ops/fused.h"
#include "ops/reference/passes.h"
#include "ops/reference/reference.h"
#include "ops/signatures.h"

/// The passes' place in the dispatcher: checks, the choice between fused kernels and the reference, gradients in the
/// types of their operands.
namespace dba::ops::cuda {
namespace {

using at::Tensor;

Tensor as_type_of(const Tensor& gradient, const Optional& operand) {
  return operand.has_value() && operand->defined() ? gradient.to(operand->scalar_type()) : Tensor();
}

/// The choice, made on x's device. `slots` and `heads` bound what the kernels take. Where there are no tokens the
/// reference serves, as part of the kernels.
bool fused(const char* function, const Tensor& x, const Sequences& sequences, int64_t heads = 1, int64_t slots = 1) {
  check_heads(function, heads, "rows", slots);
  if (x.numel() == 0 || sequences.count() == 0) {
    return false;
  }
  const c10::cuda::CUDAGuard guard(x.device());
  auto obstacle = tokens_obstacle(x);
  if (obstacle.empty() && (heads > 32 || slots / heads > 256)) {
    obstacle = "the CUDA kernels take up to 32 heads of up to 256 slots, got " + std::to_string(heads) + " of " +
               std::to_string(slots / heads);
  }
  return use_fused_on_gpu(function, obstacle);
}

std::tuple<Tensor, Tensor, Tensor> compress_cuda(const Tensor& x, const Tensor& begin, const Tensor& end,
                                                 const Optional& each, const Optional& each_bias,
                                                 const Optional& shared, const Optional& shared_bias, int64_t linear,
                                                 double p, const Optional& rng) {
  const SettledTypes settled;
  const auto sequences = sequences_of(x, begin, end);
  const auto rows = score_rows(each, each_bias, shared, shared_bias, linear);
  const auto dropout = dropout_of(p, rng);
  check_compress(x, sequences, rows, dropout);
  const auto summary = fused("compress", x, sequences) ? compress_fused(x, sequences, rows, dropout)
                                                       : reference::compress(x, sequences, rows, dropout);
  return {summary.c, summary.r, summary.lse};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> compress_backward_cuda(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t linear, double p, const Optional& rng, const Tensor& c,
    const Tensor& r, const Tensor& lse, const Optional& dc, const Optional& dr, const Optional& dlse) {
  const SettledTypes settled;
  const auto sequences = sequences_of(x, begin, end);
  const auto rows = score_rows(each, each_bias, shared, shared_bias, linear);
  const auto dropout = dropout_of(p, rng);
  CompressGradients gradients;
  if (fused("compress_backward", x, sequences)) {
    gradients = compress_backward_fused(x, sequences, rows, dropout, {c, r, lse}, value_or_absent(dc),
                                        value_or_absent(dr), value_or_absent(dlse), {}, {});
  } else {
    const auto plain =
        reference::token_pass(x, sequences,
                              reference::CompressBackward{rows, dropout, Summary{c, r, lse}, value_or_absent(dc),
                                                          value_or_absent(dr), value_or_absent(dlse)},
                              std::nullopt);
    gradients = {plain.dx, plain.each, plain.each_bias, plain.shared, plain.shared_bias};
  }
  return {gradients.dx, as_type_of(gradients.each, each), as_type_of(gradients.each_bias, each_bias),
          as_type_of(gradients.shared, shared), as_type_of(gradients.shared_bias, shared_bias)};
}

/// The gradients that there are, in the types of their operands, converted by one launch.
std::vector<Tensor> in_types_of(std::initializer_list<std::pair<Tensor, Tensor>> gradients_and_operands) {
  std::vector<Tensor> result, from, to;
  for (const auto& [gradient, operand] : gradients_and_operands) {
    if (!gradient.defined()) {
      continue;
    }
    if (gradient.scalar_type() == operand.scalar_type()) {
      result.push_back(gradient);
      continue;
    }
    from.push_back(gradient);
    to.push_back(at::empty(gradient.sizes(), gradient.options().dtype(operand.scalar_type())));
    result.push_back(to.back());
  }
  if (!from.empty()) {
    at::_foreach_copy_(to, from);
  }
  return result;
}

Tensor restore_cuda(const Tensor& x, const Tensor& begin, const Tensor& end, const Tensor& rows, const Optional& bias,
                    const Tensor& m, const Optional& out_bias, int64_t heads, bool linear, double p,
                    const Optional& rng) {
  const SettledTypes settled;
  const auto sequences = sequences_of(x, begin, end);
  const auto dropout = dropout_of(p, rng);
  check_restore("restore", x, sequences, rows, value_or_absent(bias), m, value_or_absent(out_bias), heads);
  check_dropout("restore", dropout, x.device());
  const RestoreOperands operands{rows, value_or_absent(bias), m, value_or_absent(out_bias), heads, linear};
  return fused("restore", x, sequences, heads, rows.size(-2))
             ? restore_fused(x, sequences, operands, dropout)
             : reference::restore(x, sequences, rows, operands.bias, m, operands.out_bias, heads, linear, dropout);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> restore_backward_cuda(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Tensor& rows, const Optional& bias, const Tensor& m,
    const Optional& out_bias, int64_t heads, bool linear, double p, const Optional& rng, const Tensor& dy) {
  const SettledTypes settled;
  const auto sequences = sequences_of(x, begin, end);
  const auto dropout = dropout_of(p, rng);
  if (fused("restore_backward", x, sequences, heads, rows.size(-2))) {
    const auto gradients = restore_backward_fused(
        x, sequences, {rows, value_or_absent(bias), m, value_or_absent(out_bias), heads, linear}, dropout, dy);
    const auto dx = rows.dim() == 2 ? at::matmul(gradients.dscores, rows.to(x.scalar_type()))
                                    : restore_token_gradient(x, sequences, gradients.dscores, rows);
    return {dx, gradients.rows.to(rows.scalar_type()), as_type_of(gradients.bias, bias),
            gradients.dm.to(m.scalar_type()), as_type_of(gradients.out_bias, out_bias)};
  }
  const reference::RestoreBackward given{
      reference::restore_score_rows(rows, value_or_absent(bias)), m, heads, linear, dropout, dy};
  auto [dm, dout_bias] = reference::slot_pass(x, sequences, given);
  const auto gradients = reference::token_pass(x, sequences, std::nullopt, given);
  return {gradients.dx, gradients.restore_rows.to(rows.scalar_type()), as_type_of(gradients.restore_bias, bias),
          dm.to(m.scalar_type()), as_type_of(dout_bias, out_bias)};
}

/// y, compressed, then what backward needs; m with `keep` alone.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> forward_passes(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t linear_rows, const OptionalList& weights,
    const Tensor& restore_rows, const Optional& restore_bias, const Optional& out_bias, int64_t heads, bool linear,
    double p, const Optional& rng, bool keep) {
  const SettledTypes settled;
  const auto sequences = sequences_of(x, begin, end);
  if (!fused("attention", x, sequences, heads, restore_rows.size(-2))) {
    return attention_forward_in_passes(x, begin, end, each, each_bias, shared, shared_bias, linear_rows, weights,
                                       restore_rows, restore_bias, out_bias, heads, linear, p, rng);
  }
  const auto rows = score_rows(each, each_bias, shared, shared_bias, linear_rows);
  const auto dropout = dropout_of(p, rng);
  check_compress(x, sequences, rows, dropout);
  const auto summary = compress_fused(x, sequences, rows, dropout);
  const c10::cuda::CUDAGuard guard(x.device());
  const KeptMixture keeps(x, linear, p);
  const auto middle = core_on_gpu(summary.c, summary.r, core_weights(weights), heads, dropout,
                                  {x.scalar_type(), keep && keeps.centred});
  const auto m = middle.m.defined() ? middle.m : middle.rounded;
  check_restore("restore", x, sequences, restore_rows, value_or_absent(restore_bias), m, value_or_absent(out_bias),
                heads);
  const auto y = restore_fused(
      x, sequences,
      {restore_rows, value_or_absent(restore_bias), m, value_or_absent(out_bias), heads, linear, middle.rounded},
      dropout);
  return {y,         middle.compressed, summary.c,
          summary.r, summary.lse,       middle.centred.defined() ? middle.centred : middle.rounded};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> attention_forward_cuda(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t linear_rows, const OptionalList& weights,
    const Tensor& restore_rows, const Optional& restore_bias, const Optional& out_bias, int64_t heads, bool linear,
    double p, const Optional& rng) {
  return forward_passes(x, begin, end, each, each_bias, shared, shared_bias, linear_rows, weights, restore_rows,
                        restore_bias, out_bias, heads, linear, p, rng, /*keep=*/true);
}

std::tuple<Tensor, Tensor> attention_cuda(const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each,
                                          const Optional& each_bias, const Optional& shared,
                                          const Optional& shared_bias, int64_t linear_rows, const OptionalList& weights,
                                          const Tensor& restore_rows, const Optional& restore_bias,
                                          const Optional& out_bias, int64_t heads, bool linear, double p,
                                          const Optional& rng) {
  const auto result = forward_passes(x, begin, end, each, each_bias, shared, shared_bias, linear_rows, weights,
                                     restore_rows, restore_bias, out_bias, heads, linear, p, rng, /*keep=*/false);
  return {std::get<0>(result), std::get<1>(result)};
}

std::vector<Tensor> attention_backward_cuda(const Tensor& x, const Tensor& begin, const Tensor& end,
                                            const Optional& each, const Optional& each_bias, const Optional& shared,
                                            const Optional& shared_bias, int64_t linear_rows,
                                            const OptionalList& weights, const Tensor& restore_rows,
                                            const Optional& restore_bias, const Optional& out_bias, int64_t heads,
                                            bool linear, double p, const Optional& rng, const Tensor& c,
                                            const Tensor& r, const Tensor& lse, const Tensor& m, const Tensor& dy,
                                            const Optional& dcompressed) {
  const SettledTypes settled;
  const auto sequences = sequences_of(x, begin, end);
  if (!fused("attention_backward", x, sequences, heads, restore_rows.size(-2))) {
    return attention_backward_in_passes(x, begin, end, each, each_bias, shared, shared_bias, linear_rows, weights,
                                        restore_rows, restore_bias, out_bias, heads, linear, p, rng, c, r, lse, m, dy,
                                        dcompressed);
  }
  const auto dropout = dropout_of(p, rng);
  RestoreOperands of_forward{restore_rows, value_or_absent(restore_bias), m, value_or_absent(out_bias), heads, linear};
  if (KeptMixture(x, linear, p).rounded && m.scalar_type() == x.scalar_type()) {
    of_forward.m_rounded = aligned(m);
  }
  const auto of_restore = restore_backward_fused(x, sequences, of_forward, dropout, dy);
  // The weights of a softmax add up to one unless dropout takes some away, or they are linear.
  const bool sums_vary = p > 0 || linear_rows > 0;
  const auto of_core = core_backward_on_gpu(c, r, core_weights(weights), heads, dropout, of_restore.dm,
                                            value_or_absent(dcompressed), sums_vary);
  const auto of_compress =
      compress_backward_fused(x, sequences, score_rows(each, each_bias, shared, shared_bias, linear_rows), dropout,
                              {c, r, lse}, of_core[0], of_core[1], {}, of_restore.dscores, restore_rows);
  std::vector<Tensor> gradients{of_compress.dx};
  const auto small = in_types_of({{of_compress.each, value_or_absent(each)},
                                  {of_compress.each_bias, value_or_absent(each_bias)},
                                  {of_compress.shared, value_or_absent(shared)},
                                  {of_compress.shared_bias, value_or_absent(shared_bias)},
                                  {of_restore.rows, restore_rows},
                                  {of_restore.bias, value_or_absent(restore_bias)},
                                  {of_restore.out_bias, value_or_absent(out_bias)}});
  gradients.insert(gradients.end(), small.begin(), small.end());
  gradients.insert(gradients.end(), of_core.begin() + 2, of_core.end());
  return gradients;
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, CUDA, m) {
  m.impl("compress", compress_cuda);
  m.impl("compress_backward", compress_backward_cuda);
  m.impl("restore", restore_cuda);
  m.impl("restore_backward", restore_backward_cuda);
  m.impl("attention", attention_cuda);
  m.impl("attention_forward", attention_forward_cuda);
  m.impl("attention_backward", attention_backward_cuda);
}

}  // namespace dba::ops::cuda

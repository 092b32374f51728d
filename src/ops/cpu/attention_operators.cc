#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/attention.h"
#include "ops/checks.h"
#include "ops/cpu/attention_pass.h"
#include "ops/cpu/token_matrix.h"
#include "ops/fused.h"

namespace dba::ops::cpu {
namespace {

using at::Tensor;

/// What compress, core and restore would check of their arguments, before the first of them begins.
void check(const AttentionArguments& given) {
  const auto& x = given.x;
  check_compress(x, given.sequences, given.rows, given.dropout);
  // Stand-ins of the right shapes for what compress and core make.
  const auto one = at::empty({1, 1, 1}, x.options().dtype(accumulation_type(x.scalar_type())));
  const auto batch = given.sequences.count();
  const auto rows = (given.rows.each.defined() ? given.rows.each.size(1) : 0) +
                    (given.rows.shared.defined() ? given.rows.shared.size(0) : 0);
  check_core("core", one.expand({batch, rows, x.size(1)}), one.select(0, 0).expand({batch, rows}), given.weights,
             given.heads);
  const bool one_group = given.weights.compress_weight.defined() || given.weights.other.defined();
  check_restore("restore", x, given.sequences, given.restore_rows, given.restore_bias,
                one.expand({batch, one_group ? rows : rows / 3, given.weights.out_weight.size(0)}), given.out_bias,
                given.heads);
}

AttentionArguments arguments_of(const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each,
                                const Optional& each_bias, const Optional& shared, const Optional& shared_bias,
                                int64_t linear_rows, const OptionalList& weights, const Tensor& restore_rows,
                                const Optional& restore_bias, const Optional& out_bias, int64_t heads, bool linear,
                                double p, const Optional& rng) {
  return {x,
          sequences_of(x, begin, end),
          score_rows(each, each_bias, shared, shared_bias, linear_rows),
          core_weights(weights),
          restore_rows,
          value_or_absent(restore_bias),
          value_or_absent(out_bias),
          heads,
          linear,
          dropout_of(p, rng)};
}

std::tuple<Tensor, Tensor> attention_operator(const Tensor& x, const Tensor& begin, const Tensor& end,
                                              const Optional& each, const Optional& each_bias, const Optional& shared,
                                              const Optional& shared_bias, int64_t linear_rows,
                                              const OptionalList& weights, const Tensor& restore_rows,
                                              const Optional& restore_bias, const Optional& out_bias, int64_t heads,
                                              bool linear, double p, const Optional& rng) {
  const SettledTypes settled;
  if (use_fused("attention", type_obstacle(x.scalar_type()))) {
    const auto arguments = arguments_of(x, begin, end, each, each_bias, shared, shared_bias, linear_rows, weights,
                                        restore_rows, restore_bias, out_bias, heads, linear, p, rng);
    check(arguments);
    if (const auto result = attention(arguments, /*keep=*/false)) {
      return {result->y, result->compressed};
    }
  }
  const auto result = attention_forward_in_passes(x, begin, end, each, each_bias, shared, shared_bias, linear_rows,
                                                  weights, restore_rows, restore_bias, out_bias, heads, linear, p, rng);
  return {std::get<0>(result), std::get<1>(result)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> attention_forward_operator(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t linear_rows, const OptionalList& weights,
    const Tensor& restore_rows, const Optional& restore_bias, const Optional& out_bias, int64_t heads, bool linear,
    double p, const Optional& rng) {
  const SettledTypes settled;
  if (use_fused("attention", type_obstacle(x.scalar_type()))) {
    const auto arguments = arguments_of(x, begin, end, each, each_bias, shared, shared_bias, linear_rows, weights,
                                        restore_rows, restore_bias, out_bias, heads, linear, p, rng);
    check(arguments);
    if (const auto result = attention(arguments, /*keep=*/true)) {
      const auto& [c, r, lse] = result->summary;
      return {result->y, result->compressed, c, r, lse, result->m};
    }
  }
  return attention_forward_in_passes(x, begin, end, each, each_bias, shared, shared_bias, linear_rows, weights,
                                     restore_rows, restore_bias, out_bias, heads, linear, p, rng);
}

std::vector<Tensor> attention_backward_operator(const Tensor& x, const Tensor& begin, const Tensor& end,
                                                const Optional& each, const Optional& each_bias, const Optional& shared,
                                                const Optional& shared_bias, int64_t linear_rows,
                                                const OptionalList& weights, const Tensor& restore_rows,
                                                const Optional& restore_bias, const Optional& out_bias, int64_t heads,
                                                bool linear, double p, const Optional& rng, const Tensor& c,
                                                const Tensor& r, const Tensor& lse, const Tensor& m, const Tensor& dy,
                                                const Optional& dcompressed) {
  const SettledTypes settled;
  std::optional<AttentionGradients> found;
  if (use_fused("attention_backward", type_obstacle(x.scalar_type()))) {
    found = attention_backward(arguments_of(x, begin, end, each, each_bias, shared, shared_bias, linear_rows, weights,
                                            restore_rows, restore_bias, out_bias, heads, linear, p, rng),
                               {{c, r, lse}, m, dy, value_or_absent(dcompressed)});
  }
  if (!found) {
    return attention_backward_in_passes(x, begin, end, each, each_bias, shared, shared_bias, linear_rows, weights,
                                        restore_rows, restore_bias, out_bias, heads, linear, p, rng, c, r, lse, m, dy,
                                        dcompressed);
  }
  const auto& tokens = found->tokens;
  std::vector<Tensor> gradients{tokens.dx};
  const auto add = [&](const Optional& operand, const Tensor& gradient) {
    if (operand.has_value() && operand->defined()) {
      gradients.push_back(gradient.to(operand->scalar_type()));
    }
  };
  add(each, tokens.each);
  add(each_bias, tokens.each_bias);
  add(shared, tokens.shared);
  add(shared_bias, tokens.shared_bias);
  add(restore_rows, tokens.restore_rows);
  add(restore_bias, tokens.restore_bias);
  add(out_bias, found->out_bias);
  const auto members = core_weight_members();
  for (size_t i = 0; i < members.size(); ++i) {
    add(weights.get(i), found->weights.*members[i]);
  }
  return gradients;
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, CPU, m) {
  m.impl("attention", attention_operator);
  m.impl("attention_forward", attention_forward_operator);
  m.impl("attention_backward", attention_backward_operator);
}

}  // namespace dba::ops::cpu

#include "ops/cuda/pass_calls.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "ops/cuda/general.h"
#include "ops/cuda/hopper.h"
#include "ops/cuda/pass_operands.h"
#include "ops/fused.h"
#include "ops/reference/passes.h"

namespace dba::ops::cuda {
namespace {

using at::Tensor;

/// Whether the Hopper kernels serve; their reason where they do not goes to the log.
bool hopper_serves(const char* function, const Tensor& x, const char* obstacle) {
  if (!hopper_chosen()) {
    return false;
  }
  // Ends of ranges, a little beyond the last row, are ints.
  constexpr int64_t kMostRows = (int64_t{1} << 31) - (1 << 16);
  if (obstacle == nullptr && x.size(0) > kMostRows) {
    obstacle = "the Hopper kernels take up to 2^31 - 2^16 rows";
  }
  if (obstacle != nullptr) {
    log_choice(std::string(function) + ": the general CUDA kernels, because " + obstacle);
  }
  return obstacle == nullptr;
}

/// The operands of restore, held for a launch.
struct RestoreCall {
  RestoreCall(const Tensor& x, const Sequences& sequences, const RestoreOperands& given, const Dropout& dropout)
      : tokens(readable_rows(x)),
        bounds(sequences),
        rows(reference::restore_score_rows(given.rows, given.bias), x),
        key(dropout),
        out_bias(bias_of(given.out_bias, x)) {
    arguments.element = element_of(x.scalar_type());
    arguments.tf32 = tf32_allowed();
    arguments.x = matrix_of(tokens);
    arguments.bounds = bounds.bounds();
    arguments.rows = rows.operand();
    arguments.heads = static_cast<int>(given.heads);
    arguments.linear = given.linear;
    arguments.dropout = key.key();
    arguments.out_width = static_cast<int>(given.m.size(2));
    set_bias(out_bias, arguments.out_bias, arguments.out_bias_elements);
  }
  /// The general kernels read biases in float.
  void widen_biases() {
    rows.widen_biases();
    arguments.rows = rows.operand();
    out_bias = floats(out_bias);
    set_bias(out_bias, arguments.out_bias, arguments.out_bias_elements);
  }
  void round_m(const RestoreOperands& given) {
    m = given.m_rounded.defined() ? given.m_rounded : aligned(given.m.to(tokens.scalar_type()));
    arguments.m = m.const_data_ptr();
  }

  Tensor tokens;
  BoundsOperand bounds;
  RowsOperand rows;
  DropoutOperand key;
  Tensor m, out_bias;
  RestoreArguments arguments{};
};

/// The operands of compress, held for a launch.
struct CompressCall {
  CompressCall(const Tensor& x, const Sequences& sequences, const ScoreRows& given, const Dropout& dropout)
      : tokens(readable_rows(x)), bounds(sequences), rows(given, x), key(dropout) {
    arguments.element = element_of(x.scalar_type());
    arguments.tf32 = tf32_allowed();
    arguments.x = matrix_of(tokens);
    arguments.bounds = bounds.bounds();
    arguments.rows = rows.operand();
    arguments.dropout = key.key();
  }
  void widen_biases() {
    rows.widen_biases();
    arguments.rows = rows.operand();
  }

  Tensor tokens;
  BoundsOperand bounds;
  RowsOperand rows;
  DropoutOperand key;
  CompressArguments arguments{};
};

/// The gradient of `operand`, to be filled with sums: of its type where the kernels write that; undefined without one.
Tensor sums_for(const Tensor& operand, bool floats_alone) {
  if (!operand.defined()) {
    return {};
  }
  const auto type = operand.scalar_type();
  const bool own = !floats_alone && (type == at::kHalf || type == at::kBFloat16);
  return at::empty(operand.sizes(), operand.options().dtype(own ? type : at::kFloat));
}

SumOut sum_out(const Tensor& sums) {
  return sums.defined() ? SumOut{sums.mutable_data_ptr(), element_of(sums.scalar_type())} : SumOut{};
}

int64_t rows_in(const Tensor& rows, int64_t dimension) {
  return rows.defined() ? rows.size(dimension) : 0;
}

}  // namespace

Summary compress_fused(const Tensor& x, const Sequences& sequences, const ScoreRows& rows, const Dropout& dropout) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  CompressCall call(x, sequences, rows, dropout);
  const auto count = rows_in(rows.each, 1) + rows_in(rows.shared, 0);
  const auto options = x.options().dtype(at::kFloat);
  Summary summary{at::empty({sequences.count(), count, x.size(1)}, options),
                  at::empty({sequences.count(), count}, options), at::empty({sequences.count(), count}, options)};
  auto& arguments = call.arguments;
  arguments.out = {float_data(summary.c), float_data(summary.r), float_data(summary.lse)};
  const bool hopper = hopper_serves("compress", x, hopper::compress_obstacle(arguments));
  if (!hopper) {
    call.widen_biases();
  }
  const auto memory = scratch(
      hopper ? hopper::compress_workspace(arguments, multiprocessors()) : general::compress_workspace(arguments), x);
  arguments.workspace = memory.mutable_data_ptr();
  C10_CUDA_CHECK(hopper ? hopper::compress(arguments, multiprocessors(), stream)
                        : general::compress(arguments, stream));
  return summary;
}

Tensor restore_fused(const Tensor& x, const Sequences& sequences, const RestoreOperands& operands,
                     const Dropout& dropout) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  RestoreCall call(x, sequences, operands, dropout);
  auto y = at::empty({x.size(0), operands.m.size(2)}, x.options());
  call.arguments.y = y.mutable_data_ptr();
  call.round_m(operands);
  if (hopper_serves("restore", x, hopper::restore_obstacle(call.arguments))) {
    C10_CUDA_CHECK(hopper::restore(call.arguments, multiprocessors(), stream));
  } else {
    call.widen_biases();
    C10_CUDA_CHECK(general::restore(call.arguments, stream));
  }
  return y;
}

RestoreGradients restore_backward_fused(const Tensor& x, const Sequences& sequences, const RestoreOperands& operands,
                                        const Dropout& dropout, const Tensor& dy) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  RestoreCall call(x, sequences, operands, dropout);
  const auto options = x.options().dtype(at::kFloat);
  const auto rows_of_dy = readable_rows(dy.to(x.scalar_type()));
  const auto slots = operands.rows.size(-2);
  RestoreGradients result;
  result.dscores = at::empty({x.size(0), slots}, x.options());
  result.dm = at::empty({sequences.count(), slots, dy.size(1)}, options);
  RestoreBackwardArguments arguments{};
  arguments.forward = call.arguments;
  arguments.dy = matrix_of(rows_of_dy);
  arguments.dscores = result.dscores.mutable_data_ptr();
  arguments.dm = float_data(result.dm);
  const bool hopper = hopper_serves("restore_backward", x, hopper::restore_backward_obstacle(arguments));
  result.rows = sums_for(operands.rows, /*floats_alone=*/!hopper);
  result.bias = sums_for(operands.bias, /*floats_alone=*/!hopper);
  result.out_bias = sums_for(operands.out_bias, /*floats_alone=*/!hopper);
  arguments.drows = sum_out(result.rows);
  arguments.dbias = sum_out(result.bias);
  arguments.dout_bias = sum_out(result.out_bias);
  // What all rows of a head have in common does not pass the softmax over its slots. It goes before M is rounded: rows
  // of long sequences hardly differ, and that is all that the gradient of the scores sees. Through dropout it passes,
  // and the differences are small beside it.
  auto rounded = operands;
  if (!operands.linear && dropout.p == 0 && !operands.m_rounded.defined()) {
    rounded.m_rounded = centred(operands.m, operands.heads, x.scalar_type());
  }
  call.round_m(rounded);
  if (!hopper) {
    call.widen_biases();
  }
  arguments.forward = call.arguments;
  const auto memory = scratch(hopper ? hopper::restore_backward_workspace(arguments, multiprocessors())
                                     : general::restore_backward_workspace(arguments),
                              x);
  arguments.workspace = memory.mutable_data_ptr();
  C10_CUDA_CHECK(hopper ? hopper::restore_backward(arguments, multiprocessors(), stream)
                        : general::restore_backward(arguments, stream));
  return result;
}

CompressGradients compress_backward_fused(const Tensor& x, const Sequences& sequences, const ScoreRows& rows,
                                          const Dropout& dropout, const Summary& summary, const Tensor& dc,
                                          const Tensor& dr, const Tensor& dlse, const Tensor& dscores,
                                          const Tensor& restore_rows) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  CompressCall call(x, sequences, rows, dropout);
  const auto options = x.options().dtype(at::kFloat);
  const auto c = floats(summary.c);
  const auto r = floats(summary.r);
  const auto lse = floats(summary.lse);
  const auto of_c = dc.defined() ? floats(dc) : at::zeros(c.sizes(), options);
  const auto of_r = floats(dr);
  const auto of_lse = floats(dlse);
  const auto each_rows = rows_in(rows.each, 1);
  const auto shared_rows = rows_in(rows.shared, 0);

  CompressGradients result;
  result.dx = at::empty({x.size(0), x.size(1)}, x.options());
  if (rows.each.defined()) {
    result.each = at::empty(rows.each.sizes(), options);
  }
  const bool any_bias = rows.each_bias.defined() || rows.shared_bias.defined();
  Tensor score_sums;
  if (any_bias && rows.linear > 0) {
    score_sums = at::zeros(r.sizes(), options);
  }
  std::optional<RowsOperand> of_restore;
  CompressBackwardArguments arguments{};
  arguments.forward = call.arguments;
  arguments.summary = {float_data(c), float_data(r), float_data(lse)};
  arguments.dc = float_data(of_c);
  arguments.dr = float_data(of_r);
  arguments.dlse = float_data(of_lse);
  if (dscores.defined()) {
    of_restore.emplace(reference::restore_score_rows(restore_rows, {}), x);
    arguments.dscores = dscores.const_data_ptr();
    arguments.spare = dscores.mutable_data_ptr();
    arguments.spare_bytes = dscores.nbytes();
    arguments.restore_rows = of_restore->operand();
  }
  arguments.dx = result.dx.mutable_data_ptr();
  arguments.deach = each_rows > 0 ? float_data(result.each) : nullptr;
  arguments.dscore_sums = float_data(score_sums);
  const bool hopper = hopper_serves("compress_backward", x, hopper::compress_backward_obstacle(arguments));
  result.shared = sums_for(rows.shared, /*floats_alone=*/!hopper);
  // A constant added to a softmax row changes its log-sum-exp and nothing else.
  const bool no_bias_gradient = !of_lse.defined() && rows.linear == 0;
  if (shared_rows > 0) {
    arguments.dshared = sum_out(result.shared);
    if (hopper && no_bias_gradient) {
      result.shared_bias = sums_for(rows.shared_bias, /*floats_alone=*/false);
      arguments.dshared_bias = sum_out(result.shared_bias);
    }
  }
  if (!hopper) {
    call.widen_biases();
    arguments.forward = call.arguments;
  }
  const auto memory = scratch(hopper ? hopper::compress_backward_workspace(arguments, multiprocessors())
                                     : general::compress_backward_workspace(arguments),
                              x);
  arguments.workspace = memory.mutable_data_ptr();
  C10_CUDA_CHECK(hopper ? hopper::compress_backward(arguments, multiprocessors(), stream)
                        : general::compress_backward(arguments, stream));

  if (any_bias) {
    if (no_bias_gradient) {
      result.each_bias = rows.each_bias.defined() ? at::zeros_like(rows.each_bias) : Tensor();
      if (rows.shared_bias.defined() && !result.shared_bias.defined()) {
        result.shared_bias = at::zeros_like(rows.shared_bias);
      }
      return result;
    }
    auto sums = of_lse.defined() ? of_lse : at::zeros(r.sizes(), options);
    if (rows.linear > 0) {
      const auto softmax = r.size(1) - rows.linear;
      sums = at::cat({sums.narrow(1, 0, softmax), score_sums.narrow(1, softmax, rows.linear)}, 1);
    }
    if (rows.each_bias.defined()) {
      result.each_bias = sums.narrow(1, 0, each_rows).contiguous();
    }
    if (rows.shared_bias.defined()) {
      result.shared_bias = sums.narrow(1, each_rows, shared_rows).sum(0);
    }
  }
  return result;
}

Tensor restore_token_gradient(const Tensor& x, const Sequences& sequences, const Tensor& dscores,
                              const Tensor& restore_rows) {
  const auto options = x.options().dtype(at::kFloat);
  const auto no_sums = at::empty({sequences.count(), 0}, options);
  const Summary no_slots{at::empty({sequences.count(), 0, x.size(1)}, options), no_sums, no_sums};
  return compress_backward_fused(x, sequences, {}, {}, no_slots, {}, {}, {}, dscores, restore_rows).dx;
}

}  // namespace dba::ops::cuda

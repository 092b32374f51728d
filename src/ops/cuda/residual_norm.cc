#include "ops/cuda/residual_norm.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/cuda/token_operands.h"
#include "ops/fused.h"
#include "ops/residual_norm_call.h"
#include "ops/signatures.h"

namespace dba::ops::cuda {
namespace {

using at::Tensor;

constexpr int64_t kSums = 3;  // of the branch's gradient, of dy ∘ normed, of dy

std::string obstacle(const Tensor& tokens) {
  const auto type = token_type(tokens.scalar_type());
  if (!type) {
    return std::string("the tokens' type has no kernel: ") + c10::toString(tokens.scalar_type());
  }
  const auto widest = residual_norm_width(*type);
  return tokens.size(1) <= widest
             ? ""
             : "d must be at most " + std::to_string(widest) + ", got " + std::to_string(tokens.size(1));
}

/// An operand on columns in the type of the sums.
Tensor wide_columns(const Tensor& tensor, at::ScalarType type) {
  return tensor.defined() ? tensor.to(type).contiguous() : tensor;
}

/// `tokens`: everything that is read or written by rows.
ResidualNormShape shape_of(at::ScalarType residual, at::ScalarType branch, at::IntArrayRef sizes,
                           std::initializer_list<const void*> tokens) {
  ResidualNormShape shape{*token_type(residual), *token_type(branch), sizes[0], static_cast<int>(sizes[1]), false};
  shape.whole = shape.d % residual_norm_columns(shape.residual) == 0;
  for (const auto* const pointer : tokens) {
    shape.whole = shape.whole && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  }
  return shape;
}

ResidualDropout dropout_key(const Dropout& dropout, const Tensor& rng) {
  return {dropout.p > 0 ? rng.const_data_ptr<int64_t>() : nullptr, dropout.p};
}

void run_forward(const ResidualNormCall& call, const reference::ResidualNorm& out) {
  const auto type = accumulation_type(call.residual.scalar_type());
  const auto residual = call.residual.contiguous();
  const auto branch = contiguous_or_absent(call.branch.value);
  const auto branch_bias = wide_columns(call.branch.bias, type);
  const auto weight = wide_columns(call.norm.weight, type);
  const auto bias = wide_columns(call.norm.bias, type);
  const auto rng = contiguous_or_absent(call.branch.dropout.rng);
  ResidualNormForward given{};
  given.shape = shape_of(residual.scalar_type(), call.dtype, residual.sizes(),
                         {read(residual), read(branch), write(out.sum), write(out.y)});
  given.residual = read(residual);
  given.branch = read(branch);
  given.branch_bias = read(branch_bias);
  given.weight = read(weight);
  given.bias = read(bias);
  given.eps = call.norm.eps;
  given.dropout = dropout_key(call.branch.dropout, rng);
  given.sum = write(out.sum);
  given.y = write(out.y);
  given.mean = write(out.mean);
  given.rstd = write(out.rstd);
  C10_CUDA_CHECK(residual_norm_forward(given, c10::cuda::getCurrentCUDAStream()));
}

/// The sums over rows, (3, d); without dy the backward of the sum alone. Undefined outputs are not written.
Tensor run_backward(const reference::ResidualNormSaved& saved, const Tensor& dsum, const Tensor& dy,
                    at::ScalarType branch_type, const Tensor& dresidual, const Tensor& dbranch) {
  const auto& shaped = dy.defined() ? dy : dsum;
  const auto residual_type = dy.defined() ? saved.x.scalar_type() : dsum.scalar_type();
  const auto options = shaped.options().dtype(accumulation_type(residual_type));
  const auto x = contiguous_or_absent(saved.x);
  const auto branch = contiguous_or_absent(saved.branch.value);
  const auto branch_bias = wide_columns(saved.branch.bias, options.dtype().toScalarType());
  const auto weight = wide_columns(saved.norm.weight, options.dtype().toScalarType());
  const auto rng = contiguous_or_absent(saved.branch.dropout.rng);
  const auto from_sum = contiguous_or_absent(dsum);
  const auto from_y = contiguous_or_absent(dy);
  ResidualNormBackward given{};
  given.shape = shape_of(residual_type, branch_type, shaped.sizes(),
                         {read(x), read(branch), read(from_sum), read(from_y), write(dresidual), write(dbranch)});
  const auto sums = at::empty({kSums, shaped.size(1)}, options);
  const auto workspace = at::empty({residual_norm_partials(given.shape), kSums, shaped.size(1)}, options);
  given.x = read(x);
  given.branch = read(branch);
  given.branch_bias = read(branch_bias);
  given.weight = read(weight);
  given.mean = read(saved.mean);
  given.rstd = read(saved.rstd);
  given.dropout = dropout_key(saved.branch.dropout, rng);
  given.dsum = read(from_sum);
  given.dy = read(from_y);
  given.dresidual = write(dresidual);
  given.dbranch = write(dbranch);
  given.sums = sums.mutable_data_ptr();
  given.workspace = write(workspace);
  C10_CUDA_CHECK(residual_norm_backward(given, c10::cuda::getCurrentCUDAStream()));
  return sums;
}

Tensor gradient_of(const Tensor& weight, const Tensor& sums, int64_t which) {
  return weight.defined() ? sums.select(0, which).to(weight.scalar_type(), /*non_blocking=*/false, /*copy=*/true)
                          : Tensor();
}

std::tuple<Tensor, Tensor, Tensor, Tensor> residual_norm_cuda(const Tensor& residual, const Optional& branch,
                                                              const Optional& branch_bias, const Optional& weight,
                                                              const Optional& bias, double eps, double p,
                                                              const Optional& rng, bool keep_sum,
                                                              std::optional<at::ScalarType> dtype) {
  const SettledTypes settled;
  const auto call = residual_norm_call(residual, branch, branch_bias, weight, bias, eps, p, rng, keep_sum, dtype);
  reference::ResidualNorm out;
  const c10::cuda::CUDAGuard guard(residual.device());
  if (use_fused_on_gpu("residual_norm", obstacle(residual))) {
    const auto rows = residual.size(0);
    const auto statistics = residual.options().dtype(accumulation_type(residual.scalar_type()));
    out = {at::empty({keep_sum ? rows : 0, residual.size(1)}, residual.options()),
           at::empty(residual.sizes(), residual.options().dtype(call.dtype)), at::empty({rows}, statistics),
           at::empty({rows}, statistics)};
    run_forward(call, out);
  } else {
    out = reference::residual_norm(residual, call.branch, call.norm, keep_sum, call.dtype);
  }
  return {out.sum, out.y, out.mean, out.rstd};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> residual_norm_backward_cuda(
    const Tensor& x, const Optional& branch, const Optional& branch_bias, const Optional& weight, const Optional& bias,
    const Tensor& mean, const Tensor& rstd, double p, const Optional& rng, const Optional& dsum, const Tensor& dy,
    std::optional<at::ScalarType> branch_dtype) {
  const SettledTypes settled;
  const auto saved = residual_norm_saved(x, branch, branch_bias, weight, bias, mean, rstd, p, rng, branch_dtype);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!use_fused_on_gpu("residual_norm_backward", obstacle(x))) {
    const auto gradients = reference::residual_norm_backward(saved, value_or_absent(dsum), dy);
    return {gradients.residual, gradients.branch, gradients.branch_bias, gradients.weight, gradients.bias};
  }
  const auto dresidual = at::empty(x.sizes(), x.options());
  const auto dbranch = branch_dtype ? at::empty(x.sizes(), x.options().dtype(*branch_dtype)) : Tensor();
  const auto sums = run_backward(saved, value_or_absent(dsum), dy, dy.scalar_type(), dresidual, dbranch);
  return {dresidual, dbranch, gradient_of(saved.branch.bias, sums, 0), gradient_of(saved.norm.weight, sums, 1),
          gradient_of(saved.norm.bias, sums, 2)};
}

Tensor residual_sum_cuda(const Tensor& residual, const Tensor& branch, const Optional& branch_bias, double p,
                         const Optional& rng) {
  const SettledTypes settled;
  const auto added = residual_sum_branch(residual, branch, branch_bias, p, rng);
  const c10::cuda::CUDAGuard guard(residual.device());
  if (!use_fused_on_gpu("residual_sum", obstacle(residual))) {
    return reference::residual_sum(residual, added);
  }
  const reference::ResidualNorm out{at::empty(residual.sizes(), residual.options()), {}, {}, {}};
  run_forward({residual, added, {}, /*keep_sum=*/true, branch.scalar_type()}, out);
  return out.sum;
}

std::tuple<Tensor, Tensor> residual_sum_backward_cuda(const Tensor& dsum, const Optional& branch_bias, double p,
                                                      const Optional& rng, at::ScalarType branch_dtype) {
  const SettledTypes settled;
  const Branch branch{{}, value_or_absent(branch_bias), dropout_of(p, rng)};
  const c10::cuda::CUDAGuard guard(dsum.device());
  if (!use_fused_on_gpu("residual_sum_backward", obstacle(dsum))) {
    const auto gradients = reference::residual_sum_backward(dsum, branch, branch_dtype);
    return {gradients.branch, gradients.branch_bias};
  }
  const auto dbranch = at::empty(dsum.sizes(), dsum.options().dtype(branch_dtype));
  const auto sums = run_backward({{}, branch, {}, {}, {}, branch_dtype}, dsum, {}, branch_dtype, {}, dbranch);
  return {dbranch, gradient_of(branch.bias, sums, 0)};
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, CUDA, m) {
  m.impl("residual_norm", residual_norm_cuda);
  m.impl("residual_norm_backward", residual_norm_backward_cuda);
  m.impl("residual_sum", residual_sum_cuda);
  m.impl("residual_sum_backward", residual_sum_backward_cuda);
}

}  // namespace dba::ops::cuda

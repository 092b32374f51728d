#include "ops/cuda/activate.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/cuda/token_operands.h"
#include "ops/fused.h"
#include "ops/reference/activate.h"
#include "ops/signatures.h"

namespace dba::ops::cuda {
namespace {

using at::Tensor;

std::string obstacle(const Tensor& hidden) {
  return token_type(hidden.scalar_type())
             ? ""
             : std::string("the tokens' type has no kernel: ") + c10::toString(hidden.scalar_type());
}

/// The bias in the accumulation type, or undefined.
Tensor wide_bias(const ActivateCall& call) {
  return call.bias.defined() ? call.bias.to(accumulation_type(call.hidden.scalar_type())).contiguous() : call.bias;
}

/// `operands`: everything that is read or written by several entries at once.
ActivateShape shape_of(const ActivateCall& call, std::initializer_list<const void*> operands) {
  ActivateShape shape{*token_type(call.hidden.scalar_type()),
                      call.kind == ActivationKind::gelu ? ActivateKind::gelu : ActivateKind::relu, call.hidden.size(0),
                      static_cast<int>(call.hidden.size(1)), false};
  shape.whole = shape.d % residual_norm_columns(shape.type) == 0;
  for (const auto* const pointer : operands) {
    shape.whole = shape.whole && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  }
  return shape;
}

ResidualDropout dropout_key(const Dropout& dropout, const Tensor& rng) {
  return {dropout.p > 0 ? rng.const_data_ptr<int64_t>() : nullptr, dropout.p};
}

Tensor activate_cuda(const Tensor& hidden, const Optional& bias, std::string_view kind, double p, const Optional& rng) {
  const SettledTypes settled;
  const auto call = activate_call(hidden, bias, kind, p, rng);
  const c10::cuda::CUDAGuard guard(hidden.device());
  if (!use_fused_on_gpu("activate", obstacle(hidden))) {
    return reference::activate(call);
  }
  const auto rows = hidden.contiguous();
  const auto columns = wide_bias(call);
  const auto seed = contiguous_or_absent(call.dropout.rng);
  const auto y = at::empty(hidden.sizes(), hidden.options());
  ActivateForward given{};
  given.shape = shape_of(call, {read(rows), read(columns), read(y)});
  given.hidden = read(rows);
  given.bias = read(columns);
  given.dropout = dropout_key(call.dropout, seed);
  given.y = write(y);
  C10_CUDA_CHECK(activate_forward(given, c10::cuda::getCurrentCUDAStream()));
  return y;
}

std::tuple<Tensor, Tensor> activate_backward_cuda(const Tensor& hidden, const Optional& bias, std::string_view kind,
                                                  double p, const Optional& rng, const Tensor& dy) {
  const SettledTypes settled;
  const auto call = activate_saved(hidden, bias, kind, p, rng);
  const c10::cuda::CUDAGuard guard(hidden.device());
  if (!use_fused_on_gpu("activate_backward", obstacle(hidden))) {
    const auto gradients = reference::activate_backward(call, dy);
    return {gradients.hidden, gradients.bias};
  }
  const auto rows = hidden.contiguous();
  const auto above = dy.contiguous();
  const auto columns = wide_bias(call);
  const auto seed = contiguous_or_absent(call.dropout.rng);
  const auto dhidden = at::empty(hidden.sizes(), hidden.options());
  ActivateBackward given{};
  given.shape = shape_of(call, {read(rows), read(above), read(columns), read(dhidden)});
  Tensor dbias, workspace;
  if (columns.defined()) {
    dbias = at::empty(columns.sizes(), columns.options());
    workspace = at::empty({activate_partials(given.shape), hidden.size(1)}, columns.options());
  }
  given.hidden = read(rows);
  given.bias = read(columns);
  given.dropout = dropout_key(call.dropout, seed);
  given.dy = read(above);
  given.dhidden = write(dhidden);
  given.dbias = write(dbias);
  given.workspace = write(workspace);
  C10_CUDA_CHECK(activate_backward(given, c10::cuda::getCurrentCUDAStream()));
  return {dhidden, dbias.defined() ? dbias.to(call.bias.scalar_type()) : dbias};
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, CUDA, m) {
  m.impl("activate", activate_cuda);
  m.impl("activate_backward", activate_backward_cuda);
}

}  // namespace dba::ops::cuda

#include "zoo/elu_plus_one.h"

#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/elu_plus_one.h"
#include "ops/cuda/pass_operands.h"
#include "ops/fused.h"

namespace dba::ops::cuda {
namespace {

bool has_kernel(const at::Tensor& x) {
  const auto type = x.scalar_type();
  return (type == at::kHalf || type == at::kBFloat16 || type == at::kFloat) && gpu_obstacle().empty();
}

at::Tensor elu_plus_one_cuda(const at::Tensor& given) {
  const c10::cuda::CUDAGuard guard(given.device());
  if (!has_kernel(given)) {
    return zoo::elu_plus_one_composed(given);
  }
  const auto x = given.contiguous();
  auto y = at::empty_like(x);
  C10_CUDA_CHECK(launch_elu_plus_one(y.mutable_data_ptr(), x.const_data_ptr(), element_of(x.scalar_type()), x.numel(),
                                     c10::cuda::getCurrentCUDAStream()));
  return y;
}

at::Tensor elu_plus_one_backward_cuda(const at::Tensor& given, const at::Tensor& feature) {
  zoo::check_elu_plus_one_backward(given, feature);
  const c10::cuda::CUDAGuard guard(given.device());
  if (given.scalar_type() != feature.scalar_type() || !has_kernel(given)) {
    return zoo::elu_plus_one_backward_composed(given, feature);
  }
  const auto dy = given.contiguous(), y = feature.contiguous();
  auto dx = at::empty_like(dy);
  C10_CUDA_CHECK(launch_elu_plus_one_backward(dx.mutable_data_ptr(), dy.const_data_ptr(), y.const_data_ptr(),
                                              element_of(dy.scalar_type()), dy.numel(),
                                              c10::cuda::getCurrentCUDAStream()));
  return dx;
}

TORCH_LIBRARY_IMPL(dba, CUDA, m) {
  m.impl("elu_plus_one_forward", elu_plus_one_cuda);
  m.impl("elu_plus_one_backward", elu_plus_one_backward_cuda);
}

}  // namespace
}  // namespace dba::ops::cuda

#include "ops/cuda/code_agreement.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/fused.h"
#include "zoo/agreement.h"

namespace dba::ops::cuda {
namespace {

/// Other types than the kernel's get a copy.
CountType count_type(at::ScalarType type) {
  return type == at::kBFloat16 ? CountType::bfloat16 : type == at::kDouble ? CountType::float64 : CountType::float32;
}

at::Tensor code_agreement_cuda(const at::Tensor& code_q, const at::Tensor& code_k, at::ScalarType dtype) {
  zoo::check_codes(code_q, code_k);
  const c10::cuda::CUDAGuard guard(code_q.device());
  if (!gpu_obstacle().empty()) {
    return zoo::agreement_composed(code_q, code_k, dtype);
  }
  const bool direct = dtype == at::kBFloat16 || dtype == at::kDouble;
  const auto q = code_q.contiguous(), k = code_k.contiguous();
  auto counts = at::empty({q.size(0), q.size(1), k.size(2)}, q.options().dtype(direct ? dtype : at::kFloat));
  C10_CUDA_CHECK(launch_code_agreement(counts.mutable_data_ptr(), count_type(dtype), q.const_data_ptr<int16_t>(),
                                       k.const_data_ptr<int16_t>(), q.size(0), q.size(1), k.size(2), q.size(2),
                                       c10::cuda::getCurrentCUDAStream()));
  return counts.to(dtype);
}

TORCH_LIBRARY_IMPL(dba, CUDA, m) {
  m.impl("code_agreement", code_agreement_cuda);
}

}  // namespace
}  // namespace dba::ops::cuda

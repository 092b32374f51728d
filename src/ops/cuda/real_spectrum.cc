#include "zoo/real_spectrum.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/pass_operands.h"
#include "ops/cuda/real_spectrum.h"
#include "ops/fused.h"

namespace dba::ops::cuda {
namespace {

at::Tensor real_spectrum_cuda(const at::Tensor& half, int64_t width, at::ScalarType type) {
  zoo::check_real_spectrum(half, width, type);
  const c10::cuda::CUDAGuard guard(half.device());
  if (half.scalar_type() != at::kComplexFloat || type == at::kDouble || half.is_conj() || !gpu_obstacle().empty()) {
    return zoo::real_spectrum_composed(half, width, type);
  }
  auto y = at::empty({half.size(0), half.size(1), width}, half.options().dtype(type));
  const HalfSpectrum operand{half.const_data_ptr(), half.size(0),   half.size(1),  width,
                             half.stride(0),        half.stride(1), half.stride(2)};
  C10_CUDA_CHECK(
      launch_real_spectrum(y.mutable_data_ptr(), operand, element_of(type), c10::cuda::getCurrentCUDAStream()));
  return y;
}

TORCH_LIBRARY_IMPL(dba, CUDA, m) {
  m.impl("real_spectrum", real_spectrum_cuda);
}

}  // namespace
}  // namespace dba::ops::cuda

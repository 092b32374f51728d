#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/dropout_mask.h"

/// The CUDA kernels' place in the dispatcher: torch on this side, raw pointers and a stream on the other.
namespace dba::ops::cuda {
namespace {

MaskType mask_type(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return MaskType::float16;
    case at::kBFloat16:
      return MaskType::bfloat16;
    case at::kFloat:
      return MaskType::float32;
    case at::kDouble:
      return MaskType::float64;
    default:
      TORCH_CHECK(false, "dba::dropout_mask: dtype must be a floating type, got ", c10::toString(type));
  }
}

at::Tensor dropout_mask_cuda(const at::Tensor& rng, double p, int64_t site, const at::Tensor& sequence,
                             const at::Tensor& first_token, int64_t tokens, int64_t slots, at::ScalarType dtype) {
  const c10::cuda::CUDAGuard guard(sequence.device());
  auto mask = at::empty({sequence.size(0), tokens, slots}, sequence.options().dtype(dtype));
  const auto key = rng.contiguous();
  const auto sequences = sequence.contiguous();
  const auto first_tokens = first_token.contiguous();
  C10_CUDA_CHECK(launch_dropout_mask(mask.mutable_data_ptr(), mask_type(dtype), key.const_data_ptr<int64_t>(), p, site,
                                     sequences.const_data_ptr<int64_t>(), first_tokens.const_data_ptr<int64_t>(),
                                     sequences.size(0), tokens, slots, c10::cuda::getCurrentCUDAStream()));
  return mask;
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, CUDA, m) {
  m.impl("dropout_mask", dropout_mask_cuda);
}

}  // namespace dba::ops::cuda

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <map>
#include <mutex>

#include "ops/cuda/dropout_mask.h"
#include "ops/cuda/general_convert.h"
#include "ops/dropout_mask.h"
#include "ops/fused.h"
#include "ops/kept_tensors.h"

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
  check_dropout_mask(rng, p, sequence, first_token);
  const c10::cuda::CUDAGuard guard(sequence.device());
  if (!gpu_obstacle().empty()) {
    return dropout_mask_reference(rng, p, site, sequence, first_token, tokens, slots, dtype);
  }
  auto mask = at::empty({sequence.size(0), tokens, slots}, sequence.options().dtype(dtype));
  const auto key = rng.contiguous();
  const auto sequences = sequence.contiguous();
  const auto first_tokens = first_token.contiguous();
  C10_CUDA_CHECK(launch_dropout_mask(mask.mutable_data_ptr(), mask_type(dtype), key.const_data_ptr<int64_t>(), p, site,
                                     sequences.const_data_ptr<int64_t>(), first_tokens.const_data_ptr<int64_t>(),
                                     sequences.size(0), tokens, slots, c10::cuda::getCurrentCUDAStream()));
  return mask;
}

/// Why the fused kernels cannot run on the current GPU, or empty. A build may have them for some GPUs only
/// (DBA_FUSED_ARCHITECTURES).
std::string kernels_missing() {
  if (c10::cuda::device_count() == 0) {
    return {};
  }
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, std::string> known;
  const std::lock_guard lock(mutex);
  const auto device = c10::cuda::current_device();
  const auto [place, fresh] = known.try_emplace(device);
  if (fresh && !general::kernels_exist()) {
    const auto* properties = at::cuda::getDeviceProperties(device);
    const auto major = std::to_string(properties->major), minor = std::to_string(properties->minor);
    place->second = properties->major < 8
                        ? "the CUDA kernels need compute capability 8.0, and " + std::string(properties->name) +
                              " has " + major + "." + minor
                        : "this build has no kernels for GPUs of compute capability " + major + "." + minor +
                              " (configure with -DDBA_FUSED_ARCHITECTURES=" + major + minor + ")";
  }
  return place->second;
}

const bool obstacle_is_set = (set_gpu_obstacle(kernels_missing), true);

/// Whether the device's current stream is being recorded; an answer that cannot be had counts as yes.
bool is_recording(c10::DeviceIndex device) {
  auto status = cudaStreamCaptureStatusActive;
  if (cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(device), &status) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return true;
  }
  return status != cudaStreamCaptureStatusNone;
}

const bool recording_is_set = (set_gpu_recording(is_recording), true);

}  // namespace

TORCH_LIBRARY_IMPL(dba, CUDA, m) {
  m.impl("dropout_mask", dropout_mask_cuda);
}

}  // namespace dba::ops::cuda

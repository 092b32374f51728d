#include "ops/arguments.h"

#include <c10/util/Exception.h>

#include <string>

#include "dba/backend.h"
#include "ops/fused.h"

namespace dba::ops {

CoreWeights core_weights(const OptionalList& list) {
  TORCH_CHECK(list.size() == kCoreWeights, "dba::core: weights must be a list of ", kCoreWeights,
              " optional tensors, got ", list.size());
  CoreWeights weights;
  size_t i = 0;
  for (const auto member : core_weight_members()) {
    weights.*member = value_or_absent(list.get(i++));
  }
  return weights;
}

OptionalList core_weight_list(const CoreWeights& weights) {
  OptionalList list;
  list.reserve(kCoreWeights);
  for (const auto member : core_weight_members()) {
    list.push_back(optional(weights.*member));
  }
  return list;
}

void require_reference_allowed(const char* function, const at::Tensor& x) {
  TORCH_CHECK(backend() != Backend::fused, "dba::", function,
              ": the backend is set to fused, but this build has no fused ", function, " for ", x.device().type(),
              "; set it to auto or reference");
  if (backend() == Backend::automatic) {
    if (x.is_cuda() && cuda_kernels() != CudaKernels::off) {
      TORCH_WARN_ONCE(
          "dba: plain PyTorch operators serve, which are several times slower, because the library of CUDA kernels, "
          "libdba_cuda, is not loaded; build dba where nvcc is found (`dba info` says what a build has), or install a "
          "wheel with CUDA kernels");
    }
    log_choice(std::string(function) + ": the reference, because this build has no fused " + function + " for " +
               c10::DeviceTypeName(x.device().type(), /*lower_case=*/true) + ", or libdba_cuda is not loaded");
  }
}

}  // namespace dba::ops

#include "ops/cuda/tensor_map.h"

#include <cuda_runtime.h>

namespace dba::ops::cuda {
namespace {

constexpr int kBoxColumns = 64;
constexpr int64_t kElementBytes = 2;

using Encode = decltype(&cuTensorMapEncodeTiled);

/// Through the runtime, so that the library does not link the driver and loads on machines without one.
Encode encode_function() {
  static const Encode function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found) !=
            cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
      return static_cast<Encode>(nullptr);
    }
    return reinterpret_cast<Encode>(entry);
  }();
  return function;
}

template <int kDimensions>
cudaError_t encode_map(CUtensorMap& map, Element element, const void* data, const cuuint64_t (&sizes)[kDimensions],
                       const cuuint64_t (&strides)[kDimensions - 1], const cuuint32_t (&box)[kDimensions]) {
  const Encode encode = encode_function();
  if (encode == nullptr) {
    return cudaErrorNotSupported;
  }
  const auto type = element == Element::float16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const cuuint32_t steps[] = {1, 1, 1};
  const auto succeeds = [&] {
    return encode(&map, type, kDimensions, const_cast<void*>(data), sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  };
  if (succeeds()) {
    return cudaSuccess;
  }
  // The driver's function wants a current context. A thread whose first word to the GPU this is has none until the
  // runtime gives it the device's own; one that somebody has made current stays.
  int device = 0;
  for (const auto status : {cudaGetDevice(&device), cudaSetDevice(device)}) {
    if (status != cudaSuccess) {
      return status;
    }
  }
  return succeeds() ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

bool describable(const Matrix& matrix) {
  return reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && matrix.stride * kElementBytes % 16 == 0 &&
         matrix.rows < (int64_t{1} << 31);
}

cudaError_t describe_matrix(CUtensorMap& map, Element element, const Matrix& matrix, int box_rows) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(matrix.width), static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(matrix.stride * kElementBytes)};
  const cuuint32_t box[] = {kBoxColumns, static_cast<cuuint32_t>(box_rows)};
  return encode_map<2>(map, element, matrix.data, sizes, strides, box);
}

cudaError_t describe_matrices(CUtensorMap& map, Element element, const void* data, int64_t count, int rows, int width,
                              int box_rows) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(rows),
                              static_cast<cuuint64_t>(count)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(width * kElementBytes),
                                static_cast<cuuint64_t>(width * kElementBytes * rows)};
  const cuuint32_t box[] = {kBoxColumns, static_cast<cuuint32_t>(box_rows), 1};
  return encode_map<3>(map, element, data, sizes, strides, box);
}

}  // namespace dba::ops::cuda

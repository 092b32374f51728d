#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dba::ops::cuda {

enum class CountType { bfloat16, float32, float64 };

/// counts[g, i, j] = number of hashes h with code_q[g, i, h] == code_k[g, h, j]; all contiguous, on the device.
cudaError_t launch_code_agreement(void* counts, CountType type, const int16_t* code_q, const int16_t* code_k,
                                  int64_t groups, int64_t n, int64_t m, int64_t hashes, cudaStream_t stream);

}  // namespace dba::ops::cuda

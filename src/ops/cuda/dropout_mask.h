#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dba::ops::cuda {

enum class MaskType { float16, bfloat16, float32, float64 };

/// Fills mask[pieces, tokens, slots] with 0 or `scale`. All pointers lie on the device; rng holds seed and offset.
cudaError_t launch_dropout_mask(void* mask, MaskType type, const int64_t* rng, double p, int64_t site,
                                const int64_t* sequence, const int64_t* first_token, int64_t pieces, int64_t tokens,
                                int64_t slots, cudaStream_t stream);

}  // namespace dba::ops::cuda

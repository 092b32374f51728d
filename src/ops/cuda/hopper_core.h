#pragma once

#include "ops/cuda/core.h"

/// Form `released` of `core` in one launch, on Hopper.
namespace dba::ops::cuda::hopper {

struct CoreReleasedArguments {
  Element element;
  bool aligned;  // all pointers are of 16 bytes
  bool cross;
  int batch, heads, d_p, d;
  int compressed_width;                         // of C
  int e, value_width;                           // of one head
  const float* c;                               // (B, H·d_p, d)
  const float* r;                               // (B, H·d_p)
  const void *compress_weight, *compress_bias;  // P_v (H·64, d); biases (width) or null
  const void *query_weight, *query_bias;        // (H·e, d)
  const void *key_weight, *key_bias;            // (H·e, d)
  const void *value_weight, *value_bias;        // (H·64, d)
  const void *norm_weight, *norm_bias;          // (H·64)
  const void* out_weight;                       // (d_out, H·64)
  int out_width;
  CoreDropout dropout;
  MixOut m;
  float* compressed;  // (B·d_p, d)
};

/// Why the kernel cannot serve, or null.
const char* core_released_obstacle(const CoreReleasedArguments& given);
cudaError_t core_released(const CoreReleasedArguments& given, cudaStream_t stream);

}  // namespace dba::ops::cuda::hopper

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace dba::ops::cuda {

__device__ inline float widened(float value) {
  return value;
}
__device__ inline float widened(__half value) {
  return __half2float(value);
}
__device__ inline float widened(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

}  // namespace dba::ops::cuda

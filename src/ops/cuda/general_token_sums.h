#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/general_launch.cuh"
#include "ops/cuda/passes.h"

/// weightsᵀ values, summed over the tokens of each sequence or over all tokens that belong to one.
namespace dba::ops::cuda::general {

struct TokenSums {
  Element element;
  bool tf32;
  Bounds bounds;
  Matrix weights;                // (N, S) elements
  Matrix values;                 // (N, width) elements
  bool each = false;             // per sequence
  float* sums = nullptr;         // (B, S, width), or (S, width)
  float* weight_sums = nullptr;  // (B, S) or (S) sums of the weights, or null
  float* value_sums = nullptr;   // (width) sums of the values over all sequences, or null
};

struct TokenSumsPlan {
  Split split;
  int blocks = 0, chunks = 0, stages = 0;
  bool weights_aligned = false, values_aligned = false;
  // Per place where `each`, else per range; value_sums per range always.
  float* sums = nullptr;
  float* weight_sums = nullptr;
  float* value_sums = nullptr;
};

/// Takes what scratch the sums need: it depends on the shapes alone.
TokenSumsPlan plan_token_sums(const TokenSums& given, Scratch& scratch);
cudaError_t add_tokens(const TokenSums& given, TokenSumsPlan plan, cudaStream_t stream);

}  // namespace dba::ops::cuda::general

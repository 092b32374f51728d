#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/general_launch.cuh"
#include "ops/cuda/passes.h"

/// The parts of compress's backward: dX, which stays with a tile of tokens and goes through the slots, and the score
/// rows' gradient, which stays with a block of slots and goes through the tokens.
///
/// Both rebuild W = exp(S − lse) and dW = X dCᵀ + dr; then dS = W ∘ (m̃ ∘ dW − reduction), or m̃ ∘ dW / length for
/// linear rows.
namespace dba::ops::cuda::general {

struct CompressBackwardPlan {
  const void* dc = nullptr;    // (B, L, d) elements
  float* reduction = nullptr;  // (B, L): Σ_d dC ∘ C + dr ∘ r − dlse; 0 for linear rows
  int chunks = 0;              // of the width
  bool x_aligned = false, rows_aligned = false, dc_aligned = false;
  bool restore_rows_aligned = false, dscores_aligned = false, dx_aligned = false;
  Dropping dropping;
  // For the gradient of the score rows. A block of slots holds rows of each sequence or shared ones, never both.
  Split split;
  int each_blocks = 0, shared_blocks = 0;
  float* each = nullptr;        // (places, each_rows, d)
  float* shared = nullptr;      // (ranges, shared_rows, d)
  float* score_sums = nullptr;  // (places, L)
};

cudaError_t write_token_gradient(const CompressBackwardArguments& given, const CompressBackwardPlan& plan,
                                 cudaStream_t stream);
cudaError_t write_row_gradient(const CompressBackwardArguments& given, const CompressBackwardPlan& plan,
                               cudaStream_t stream);

}  // namespace dba::ops::cuda::general

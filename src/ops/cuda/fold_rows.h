#pragma once

#include "ops/cuda/passes.h"

namespace dba::ops::cuda {

constexpr int kMostFolds = 4;

/// Rows of all groups and the tail behind them, in one launch; everything of one element type and contiguous.
struct FoldRowsArguments {
  Element element;
  const void* z;                    // (batch, d_p, heads · width)
  const void* weights[kMostFolds];  // (heads · width, d) each
  const void* biases[kMostFolds];   // (heads · width) or null
  int groups;
  const void* tail;       // (tail_rows, d) or null
  const void* tail_bias;  // (tail_rows) or null: zeros
  int tail_rows;
  int batch, heads, d_p, width, d;
  float scale;
  void* rows;  // (batch, groups · heads · d_p + tail_rows, d)
  void* bias;  // (batch, …) or null
};

cudaError_t fold_rows(const FoldRowsArguments& arguments, cudaStream_t stream);

}  // namespace dba::ops::cuda

#pragma once

#include <cstdint>

#include "ops/cuda/general_tiles.cuh"
#include "ops/cuda/passes.h"

/// Score rows of one sequence.
namespace dba::ops::cuda::general {

__host__ __device__ inline int row_count(const ScoreOperand& rows) {
  return rows.each_rows + rows.shared_rows;
}

template <class E>
__device__ inline const E* score_row(const ScoreOperand& rows, int width, int64_t sequence, int row) {
  if (row < rows.each_rows) {
    return static_cast<const E*>(rows.each) + sequence * rows.each_stride + static_cast<int64_t>(row) * width;
  }
  return static_cast<const E*>(rows.shared) + static_cast<int64_t>(row - rows.each_rows) * width;
}

/// The columns from `column` on of the score rows slot0 … slot0 + count − 1.
template <class E>
__device__ inline StridedRows<E> score_rows(const ScoreOperand& rows, int width, int64_t sequence, int slot0, int count,
                                            int column) {
  const int each = rows.each_rows - slot0;  // how many of them are the sequence's own
  StridedRows<E> result;
  result.stride = width;
  result.after = count;
  result.split = each;
  if (each > 0) {
    result.row = score_row<E>(rows, width, sequence, slot0) + column;
  }
  if (rows.shared_rows > 0) {
    result.second = static_cast<const E*>(rows.shared) - static_cast<int64_t>(each) * width + column;
  }
  return result;
}

__device__ inline float score_bias(const ScoreOperand& rows, int64_t sequence, int row) {
  if (row < rows.each_rows) {
    return rows.each_bias == nullptr ? 0.0f : rows.each_bias[sequence * rows.each_rows + row];
  }
  return rows.shared_bias == nullptr ? 0.0f : rows.shared_bias[row - rows.each_rows];
}

}  // namespace dba::ops::cuda::general

#pragma once

#include <cuda.h>

#include "ops/cuda/passes.h"

namespace dba::ops::cuda {

/// Describes a matrix of two-byte elements to the copy engine: boxes of 64 columns × `box_rows` rows, written with
/// 128-byte swizzle; what lies outside the matrix arrives as zeros.
cudaError_t describe_matrix(CUtensorMap& map, Element element, const Matrix& matrix, int box_rows);

/// The same for `count` contiguous matrices of `rows` rows one behind the other: boxes stay inside one of them, so that
/// rows behind its last arrive as zeros.
cudaError_t describe_matrices(CUtensorMap& map, Element element, const void* data, int64_t count, int rows, int width,
                              int box_rows);

/// Whether the copy engine can read it: 16-byte aligned rows, fewer than 2³¹ of them.
bool describable(const Matrix& matrix);

}  // namespace dba::ops::cuda

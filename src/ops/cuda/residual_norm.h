#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

/// Residual, dropout and LayerNorm in one pass: device pointers, sizes and a stream; no torch on this side.
/// Rows are contiguous. "Wide" is float, or double where the tokens are. The branch has the residual's type, or a half
/// type beside float. Null: absent.
namespace dba::ops::cuda {

enum class TokenType { float16, bfloat16, float32, float64 };

/// Columns of a thread: 16 bytes of the residual.
constexpr int residual_norm_columns(TokenType residual) {
  return residual == TokenType::float64 ? 2 : residual == TokenType::float32 ? 4 : 8;
}
/// The most threads that share a row: eight columns take more registers than 512 threads can have.
constexpr int residual_norm_threads(TokenType residual) {
  return residual == TokenType::float64 || residual == TokenType::float32 ? 512 : 256;
}
/// The widest row the kernels take.
constexpr int residual_norm_width(TokenType residual) {
  return residual_norm_threads(residual) * residual_norm_columns(residual);
}

struct ResidualNormShape {
  TokenType residual;
  TokenType branch;  // also of y
  int64_t rows;
  int d;
  bool whole;  // all pointers allow 16-byte accesses and d is a multiple of residual_norm_columns
};

struct ResidualDropout {
  const int64_t* rng = nullptr;  // seed, offset
  double p = 0.0;
};

struct ResidualNormForward {
  ResidualNormShape shape;
  const void* residual;     // (rows, d)
  const void* branch;       // (rows, d) or null
  const void* branch_bias;  // (d) wide, or null
  const void* weight;       // (d) wide, or null
  const void* bias;         // (d) wide, or null
  double eps;
  ResidualDropout dropout;
  void* sum;   // (rows, d) or null
  void* y;     // (rows, d) or null: the sum alone
  void* mean;  // (rows) wide
  void* rstd;  // (rows) wide
};

struct ResidualNormBackward {
  ResidualNormShape shape;
  const void* x;            // (rows, d): the residual beside `branch`, else the sum
  const void* branch;       // (rows, d) or null
  const void* branch_bias;  // (d) wide, or null
  const void* weight;       // (d) wide, or null
  const void* mean;         // (rows) wide
  const void* rstd;         // (rows) wide
  ResidualDropout dropout;
  const void* dsum;  // (rows, d) of the residual's type, or null
  const void* dy;    // (rows, d) of the branch's type, or null: backward of the sum alone, which reads dsum only
  void* dresidual;   // (rows, d) or null
  void* dbranch;     // (rows, d) of the branch's type, or null
  void* sums;        // (3, d) wide: of the branch's gradient, of dy ∘ normed, of dy
  void* workspace;   // residual_norm_partials(...) · 3 · d wide
};

/// How many partial sums over rows the backward keeps; a function of the shape alone.
int64_t residual_norm_partials(const ResidualNormShape& shape);

cudaError_t residual_norm_forward(const ResidualNormForward& given, cudaStream_t stream);
cudaError_t residual_norm_backward(const ResidualNormBackward& given, cudaStream_t stream);

}  // namespace dba::ops::cuda

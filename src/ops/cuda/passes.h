#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

/// What the kernels of the two passes take: device pointers, sizes and a stream; no torch on this side.
/// Sizes: N rows, B sequences, width d, L score rows, S = H·d_p slots of restore, output width d_out.
/// "Element" is the tokens' type; sums, biases and everything on slots are float but where a SumOut says otherwise.
namespace dba::ops::cuda {

enum class Element { float16, bfloat16, float32 };

/// (rows, width) elements, the entries of a row side by side, `stride` elements from one row to the next.
struct Matrix {
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t stride = 0;
  int width = 0;
};

/// Sequence b owns the rows begin[b] … end[b] − 1; sequences stand in order and do not overlap.
struct Bounds {
  const int64_t* begin = nullptr;
  const int64_t* end = nullptr;
  int64_t count = 0;
};

/// Score rows as elements, each row contiguous: first those of each sequence (count, each_rows, d), then those that
/// all share (shared_rows, d). `each_stride`: elements between two sequences, 0 where all see the same.
struct ScoreOperand {
  const void* each = nullptr;
  int64_t each_stride = 0;
  int each_rows = 0;
  const void* shared = nullptr;
  int shared_rows = 0;
  const float* each_bias = nullptr;    // (B, each_rows) or null
  const float* shared_bias = nullptr;  // (shared_rows) or null
  // The same as elements; only the Hopper kernels read these, where the ones in float are null.
  const void* each_bias_elements = nullptr;
  const void* shared_bias_elements = nullptr;
  int linear = 0;  // the last `linear` rows are divided by the length

  int rows() const {
    return each_rows + shared_rows;
  }
};

/// Where a gradient's sums go. The general kernels write floats alone.
struct SumOut {
  void* data = nullptr;
  Element type = Element::float32;

  __host__ __device__ float* floats() const {
    return static_cast<float*>(data);
  }
  /// The same from number `first` on.
  SumOut from(int64_t first) const {
    return {static_cast<unsigned char*>(data) + first * (type == Element::float32 ? 4 : 2), type};
  }
};

/// p = 0: no dropout, rng may be null.
struct DropoutKey {
  const int64_t* rng = nullptr;  // seed, offset
  double p = 0.0;
};

/// c (B, L, d), r (B, L), lse (B, L).
struct SummaryOut {
  float* c = nullptr;
  float* r = nullptr;
  float* lse = nullptr;
};

struct SummaryIn {
  const float* c = nullptr;
  const float* r = nullptr;
  const float* lse = nullptr;
};

struct CompressArguments {
  Element element;
  bool tf32;  // float32 products may be rounded to TF32
  Matrix x;   // (N, d)
  Bounds bounds;
  ScoreOperand rows;
  DropoutKey dropout;
  SummaryOut out;
  void* workspace;
};

struct RestoreArguments {
  Element element;
  bool tf32;
  Matrix x;  // (N, d)
  Bounds bounds;
  ScoreOperand rows;  // S rows, either each or shared; `linear` unused
  int heads;          // d_p = S / heads
  bool linear;        // no softmax over the slots
  DropoutKey dropout;
  const void* m;                  // (B, S, d_out) elements
  int out_width;                  // d_out
  const float* out_bias;          // (d_out) or null
  const void* out_bias_elements;  // the same as elements; only the Hopper kernels read it, where out_bias is null
  void* y;                        // (N, d_out) elements, contiguous; rows of nobody are zeroed
};

/// Restore's whole backward but dX: dS = gradient of the scores X F + g, left for the pass that writes dX.
struct RestoreBackwardArguments {
  RestoreArguments forward;  // y unused
  Matrix dy;                 // (N, d_out) elements
  void* dscores;             // (N, S) elements, contiguous; rows of nobody are zeroed
  float* dm;                 // (B, S, d_out)
  SumOut dout_bias;          // (d_out) or null
  SumOut drows;              // (S, d) shared, or (B, S, d) each
  SumOut dbias;              // (S) shared, or (B, S) each, or null
  void* workspace;
};

/// dX of compress and, where dscores is given, of restore; and the gradients of compress's score rows.
struct CompressBackwardArguments {
  CompressArguments forward;  // out and workspace unused
  SummaryIn summary;
  const float* dc;    // (B, L, d)
  const float* dr;    // (B, L) or null
  const float* dlse;  // (B, L) or null
  // restore's part, or null:
  const void* dscores;        // (N, S) elements, contiguous
  ScoreOperand restore_rows;  // its S rows
  void* dx;                   // (N, d) elements, contiguous; rows of nobody are zeroed
  float* deach;               // (B, each_rows, d) or null
  SumOut dshared;             // (shared_rows, d) or null
  SumOut dshared_bias;        // (shared_rows), becomes zeros, or null; the Hopper kernels alone
  float* dscore_sums;         // (B, L) Σ over tokens of the scores' gradient of the linear rows, or null; rows that
                              // pass a softmax are left alone (theirs is dlse)
  void* spare;                // may be overwritten once dx is made, dscores' own memory for one; 16-byte aligned
  size_t spare_bytes;
  void* workspace;
};

}  // namespace dba::ops::cuda

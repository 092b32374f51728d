#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/passes.h"
#include "ops/philox.h"

/// What the kernels of `core` take. Sizes: B sequences, H heads, d_p slots, width d, widths of one head w_q (queries
/// and keys), w_v (values), e (after R), output width d_out. Rows are the B·d_p slots of all sequences, heads side by
/// side. "Element" is the weights' type; everything else is float.
namespace dba::ops::cuda {

namespace dropout_site {
constexpr uint32_t kCore = 1;
}

/// DropoutKey, with what the kernels make of p.
struct CoreDropout {
  const int64_t* rng;  // seed, offset; null: no dropout
  uint32_t threshold;
  float scale;
};

inline CoreDropout core_dropout(const DropoutKey& key) {
  return {key.p > 0.0 ? key.rng : nullptr, philox::threshold(key.p), static_cast<float>(1.0 / (1.0 - key.p))};
}

/// (B·d_p, d) floats that one of a head's projections takes: row j of head h at
/// source + (j / d_p) · sequence_stride + h · head_stride + (j % d_p) · d.
struct Lifted {
  const float* source = nullptr;
  int64_t sequence_stride = 0;
  int64_t head_stride = 0;
  const float* sums = nullptr;  // r of the same rows, or null: 1
  int64_t sums_sequence_stride = 0;
  const void* weight = nullptr;  // (H·w, d) elements
  const void* bias = nullptr;    // (H·w) elements or null
  int width = 0;                 // w
};

/// Where M goes: as floats, and rounded to the tokens' type for kernels that read it so: as it is, and less the mean
/// over the slots of each head. Each may be null.
struct MixOut {
  float* m = nullptr;       // (B, H·d_p, d_out)
  void* rounded = nullptr;  // the same
  void* centred = nullptr;  // the same
  Element type = Element::float32;
};

/// Form `paper`, self- and cross-attention, in one launch: for half weights, 16 slots and heads of 64 columns.
struct CorePaperArguments {
  Element element;
  bool aligned;  // all pointers are of 16 bytes
  int batch, heads, d_p, d;
  Lifted lifted[3];   // queries, keys, values
  const void* width;  // R (H, w_q, e) elements or null
  int e;
  const void* out_weight;  // (d_out, H·w_v) elements
  int out_width;
  CoreDropout dropout;
  MixOut m;
  float* compressed;  // (B·d_p, H·w_q)
};

/// The attention between slots, O = P' V, and the LayerNorm behind it in form `released`; that one backwards too.
struct CoreAttendArguments {
  Element element;
  int batch, heads, d_p;
  const float *q, *k, *v;  // (B·d_p, H·e), (B·d_p, H·e), (B·d_p, H·w_v); behind R
  int e, value_width;
  const void *norm_weight, *norm_bias;  // (H·w_v) elements, or null: no LayerNorm
  CoreDropout dropout;
  float* normed;         // (B·d_p, H·w_v) what W_O multiplies
  const float* dnormed;  // (B·d_p, H·w_v) its gradient, or null: forward only; with LayerNorm only, like the next two
  float* dnorm_products;  // (B·d_p, H·w_v) dnormed ∘ x̂
  float* dmixed;          // (B·d_p, H·w_v) gradient of O
};

/// The attention between slots backwards, in both forms, head by head.
struct CoreAttendBackwardArguments {
  Element element;
  int batch, heads, d_p;
  const float *q, *k, *v;  // (B·d_p, H·w_q), (B·d_p, H·w_q), (B·d_p, H·w_v); before R
  int query_width, value_width;
  const void* width;  // R (H, w_q, e) elements or null (e = w_q)
  int e;
  CoreDropout dropout;
  const float* dmixed;           // (B·d_p, H·w_v) gradient of O
  const float* dcompressed;      // (B·d_p, H·w_q) added to dq, or null
  float* mixed;                  // (B·d_p, H·w_v) O, or null
  float *dq, *dk, *dv;           // like q, k, v
  float *dq_narrow, *dk_narrow;  // (B·d_p, H·e) behind R; with R only
};

/// Bytes of shared memory that a block needs at least.
int64_t core_attend_bytes(int d_p, int heads, int value_width);
int64_t core_attend_backward_bytes(int d_p, int e, bool with_width);

struct CoreDevice {
  int multiprocessors;
  int64_t shared_bytes;  // what one block may take
};

bool core_paper_serves(const CorePaperArguments& given, const CoreDevice& device);
cudaError_t core_paper(const CorePaperArguments& given, const CoreDevice& device, cudaStream_t stream);
cudaError_t core_attend(const CoreAttendArguments& given, const CoreDevice& device, cudaStream_t stream);
cudaError_t core_attend_backward(const CoreAttendBackwardArguments& given, const CoreDevice& device,
                                 cudaStream_t stream);

}  // namespace dba::ops::cuda

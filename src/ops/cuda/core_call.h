#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "dba/ops.h"
#include "ops/cuda/core.h"
#include "ops/cuda/core_products.h"
#include "ops/cuda/pass_operands.h"

/// One call of `core` or `core_backward`: its operands as the kernels want them, its sizes, and the products it is
/// made of.
namespace dba::ops::cuda {

CoreDevice current_device();

struct CoreCall {
  CoreCall(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights, int64_t heads, const Dropout& dropout);

  at::Tensor c, r, other, rng;  // float32, contiguous; rng int64
  CoreWeights w;                // of one type, contiguous; `other` left out
  bool released, cross;
  int64_t batch, heads, d_p, d, groups;
  int64_t compressed_width;                        // of all heads
  int64_t query_width, value_width, e, out_width;  // of one head; e: behind R
  double p;

  Element element() const;
  bool tf32() const;
  CoreDropout dropout() const;
  int64_t rows() const {
    return batch * d_p;
  }
  /// Why the kernels cannot serve this call; empty where they can.
  std::string obstacle(const CoreDevice& device, bool backward) const;
  at::Tensor floats(at::IntArrayRef sizes) const;
  /// (B·d_p, H·width)
  at::Tensor joined(int64_t width) const {
    return floats({rows(), heads * width});
  }

  HeadMatrix summary(const at::Tensor& of, int64_t group) const;          ///< (B, L, d): one group's rows
  HeadMatrix row_sums(const at::Tensor& of, int64_t group) const;         ///< (B, L)
  HeadMatrix slot_rows(const at::Tensor& of) const;                       ///< (B, H·d_p, ·)
  HeadMatrix by_head(const at::Tensor& of, int64_t width) const;          ///< (B·d_p, H·width)
  static HeadMatrix whole(const at::Tensor& of);                          ///< (rows, width), no heads
  static HeadMatrix weight_rows(const at::Tensor& of, int64_t width);     ///< (H·width, in)
  static HeadMatrix weight_columns(const at::Tensor& of, int64_t width);  ///< (out, H·width)
  static HeadMatrix vector(const at::Tensor& of, int64_t width);          ///< (H·width), a number a row

  ProductList list() const;
  /// (W X)_h W_hᵀ + r b_h for one group.
  Product lift(int64_t group, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out) const;
  /// rows Wᵀ + b, all heads at once.
  Product project(const at::Tensor& source, const at::Tensor& weight, const at::Tensor& bias,
                  const at::Tensor& out) const;
  /// Queries or keys behind R: q_h R_h.
  Product narrowed(const at::Tensor& source, const at::Tensor& out) const;
  /// M_h = normed_h W_O,hᵀ.
  Product mixed_out(const at::Tensor& normed, const at::Tensor& m) const;
};

void append(ProductList& list, const Product& product);
void run(const ProductList& list, const at::Tensor& like);

inline int narrow(int64_t size) {
  return static_cast<int>(size);
}

}  // namespace dba::ops::cuda

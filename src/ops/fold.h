#pragma once

#include <tuple>
#include <vector>

#include "ops/signatures.h"

namespace dba::ops {

/// The operands of one call of `fold_stack`, checked.
struct FoldCall {
  at::Tensor z;                             // (d_p, H·w) or (B, d_p, H·w)
  std::vector<at::Tensor> weights, biases;  // (H·w, d), (H·w) or undefined; equally many
  at::Tensor tail, tail_bias;               // (T, d), (T), or undefined
  int64_t heads = 1;
  double scale = 1.0;

  FoldCall() = default;
  FoldCall(const at::Tensor& z, at::TensorList weights, const OptionalList& biases, const Optional& tail,
           const Optional& tail_bias, int64_t heads, double scale);

  bool each() const {
    return z.dim() == 3;
  }
  int64_t d_p() const {
    return z.size(-2);
  }
  int64_t d() const {
    return weights.front().size(1);
  }
  int64_t folded_rows() const {
    return static_cast<int64_t>(weights.size()) * heads * d_p();
  }
  int64_t rows() const {
    return folded_rows() + (tail.defined() ? tail.size(0) : 0);
  }
  bool has_bias() const;
  /// Of the rows: what z, the weights and the tail promote to.
  at::ScalarType type() const;
};

namespace reference {

std::tuple<at::Tensor, at::Tensor> fold(const FoldCall& call);

/// dz, then one gradient for each weight, then one for each bias that is present. drows and dbias may be undefined, and
/// may go on behind the folded rows.
std::vector<at::Tensor> fold_backward(const FoldCall& call, const at::Tensor& drows, const at::Tensor& dbias);

}  // namespace reference
}  // namespace dba::ops

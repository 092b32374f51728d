#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/mask_source.h"

/// The loops over one row, or over the four rows that share a Philox call, of the residual operators.
namespace dba::ops::cpu {

constexpr int64_t kQuad = 4;

/// An operand on columns in the accumulation type; where it is absent, `absent` in every column, so that the loops over
/// columns have no branches.
template <class A>
struct Columns {
  at::Tensor held;
  const A* data;

  Columns(const at::Tensor& tensor, double absent, int64_t d, const at::TensorOptions& options) {
    const auto type = c10::CppTypeToScalarType<A>::value;
    held = tensor.defined() ? tensor.to(type).contiguous() : at::full({d}, absent, options.dtype(type));
    data = held.template const_data_ptr<A>();
  }
};

/// The masks of a quad of rows.
template <class A>
class QuadMask {
 public:
  QuadMask(const Dropout& dropout, int64_t d)
      : source_(dropout, kSiteResidual), kernels_(kernels<A>()), d_(d), panels_((d - 1) / kernels_.panel + 1) {}

  bool active() const {
    return source_.active();
  }
  /// Entries of scratch memory that `draw` needs.
  int64_t size() const {
    return active() ? kQuad * d_ + kQuad * panels_ * kernels_.panel + kAlignment : 0;
  }
  /// scratch begins with the mask (4, d): 0 or the kept rate's inverse.
  void draw(int64_t quad, std::vector<A>& scratch) const {
    auto address = reinterpret_cast<uintptr_t>(scratch.data() + kQuad * d_);
    address = (address + 63) / 64 * 64;
    const Panels<A> panels{reinterpret_cast<A*>(address), kQuad * kernels_.panel, kernels_.panel};
    source_.draw(kernels_, panels, /*sequence=*/0, quad * kQuad, kQuad, /*first_slot=*/0, d_);
    for (int64_t first = 0; first < d_; first += kernels_.panel) {
      const auto* const panel = panels.entries + first / kernels_.panel * panels.stride;
      for (int64_t row = 0; row < kQuad; ++row) {
        std::copy_n(panel + row * kernels_.panel, std::min(kernels_.panel, d_ - first),
                    scratch.data() + row * d_ + first);
      }
    }
  }

 private:
  static constexpr int64_t kAlignment = 64 / sizeof(A);
  MaskSource<A> source_;
  const Kernels<A>& kernels_;
  int64_t d_;
  int64_t panels_;
};

/// out[j] = residual + mask · (branch + bias), in the accumulation type; branch and mask may be null.
template <class A, class R, class B>
inline void sum_row(A* __restrict__ out, const R* residual, const B* branch, const A* bias, const A* mask, int64_t d) {
  for (int64_t j = 0; j < d; ++j) {
    out[j] = static_cast<A>(residual[j]);
  }
  if (branch == nullptr) {
    return;
  }
  if (mask == nullptr) {
    for (int64_t j = 0; j < d; ++j) {
      out[j] += static_cast<A>(branch[j]) + bias[j];
    }
  } else {
    for (int64_t j = 0; j < d; ++j) {
      out[j] += mask[j] * (static_cast<A>(branch[j]) + bias[j]);
    }
  }
}

/// sum[j] += row[j].
template <class A, class T>
inline void add_row(A* __restrict__ sum, const T* __restrict__ row, int64_t d) {
  for (int64_t j = 0; j < d; ++j) {
    sum[j] += static_cast<A>(row[j]);
  }
}

/// h becomes normalised, dh = dy · weight; the sums over rows of dy · h and of dy grow.
template <class A, class B>
inline void scale_row(const B* __restrict__ dy, const A* __restrict__ weight, A mean, A rstd, A* __restrict__ h,
                      A* __restrict__ dh, A* __restrict__ weight_sum, A* __restrict__ bias_sum, int64_t d) {
  for (int64_t j = 0; j < d; ++j) {
    const A gradient = static_cast<A>(dy[j]);
    h[j] = (h[j] - mean) * rstd;
    dh[j] = gradient * weight[j];
    weight_sum[j] += gradient * h[j];
    bias_sum[j] += gradient;
  }
}

/// dh, the gradient of the normalised row h, becomes that of the row before the norm.
template <class A>
inline void centre_row(A* __restrict__ dh, const A* __restrict__ h, A flat, A along, A rstd, int64_t d) {
  for (int64_t j = 0; j < d; ++j) {
    dh[j] = rstd * (dh[j] - flat - h[j] * along);
  }
}

/// Σ over a row in eight interleaved parts: the compiler may keep them in one vector.
template <class A, class Term>
inline A row_sum(int64_t d, const Term& term) {
  constexpr int64_t kParts = 8;
  A parts[kParts] = {};
  int64_t j = 0;
  for (; j + kParts <= d; j += kParts) {
    for (int64_t k = 0; k < kParts; ++k) {
      parts[k] += term(j + k);
    }
  }
  for (; j < d; ++j) {
    parts[0] += term(j);
  }
  A sum = 0;
  for (const auto part : parts) {
    sum += part;
  }
  return sum;
}

}  // namespace dba::ops::cpu

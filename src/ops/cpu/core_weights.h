#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "dba/ops.h"
#include "ops/cpu/scratch.h"

namespace dba::ops::cpu {

/// A linear layer (H·w, in) packed head by head. Its bias is one more input, which is 1 for ordinary rows and r for
/// summaries: W(X Pᵀ + 1 bᵀ) = [W X, r] [P, b]ᵀ.
template <class T>
class HeadLinear {
 public:
  HeadLinear() = default;
  HeadLinear(const Kernels<T>& kernels, const at::Tensor& weight, const at::Tensor& bias, int64_t heads, bool plain,
             Scratch& scratch)
      : panel_(kernels.panel), inputs_(weight.size(1)), width_(weight.size(0) / heads), has_bias_(bias.defined()) {
    constexpr auto type = c10::CppTypeToScalarType<T>::value;
    rows_ = weight.to(type).contiguous();
    terms_ = has_bias_ ? bias.to(type).contiguous() : bias;
    for (int64_t head = 0; head < heads; ++head) {
      transposed_.push_back(scratch.panels(kernels, extended_inputs(), width_));
      if (plain) {
        plain_scratch_.push_back(right_factor_scratch(kernels, width_, inputs_, scratch));
      }
    }
    plain_.resize(plain_scratch_.size());
  }

  /// Fills what was made room for. Several threads may each take a head.
  void pack(const Kernels<T>& kernels, int64_t head) {
    const auto h = static_cast<size_t>(head);
    const T* const from = rows_.template const_data_ptr<T>() + head * width_ * inputs_;
    kernels.pack_transposed(from, inputs_, transposed_[h], width_, inputs_);
    if (has_bias_) {
      kernels.pack(bias(head).entries, width_, from_row(transposed_[h], inputs_), 1, width_);
    }
    if (!plain_.empty()) {
      plain_[h] = right_factor(kernels, from, inputs_, width_, inputs_, plain_scratch_[h]);
    }
  }

  /// (inputs and bias × w) and (w × inputs).
  Panels<const T> transposed(int64_t head) const {
    return fixed(transposed_[static_cast<size_t>(head)]);
  }
  Panels<const T> plain(int64_t head) const {
    return plain_[static_cast<size_t>(head)];
  }
  int64_t inputs() const {
    return inputs_;
  }
  int64_t extended_inputs() const {
    return inputs_ + (has_bias_ ? 1 : 0);
  }
  int64_t width() const {
    return width_;
  }
  /// (· × w) the same row everywhere; where there is a bias.
  Panels<const T> bias(int64_t head) const {
    return {terms_.template const_data_ptr<T>() + head * width_, panel_, 0};
  }
  bool has_bias() const {
    return has_bias_;
  }

 private:
  int64_t panel_ = 0;
  int64_t inputs_ = 0;
  int64_t width_ = 0;
  bool has_bias_ = false;
  at::Tensor rows_, terms_;
  std::vector<Panels<T>> transposed_, plain_scratch_;
  std::vector<Panels<const T>> plain_;
};

/// Everything `core` multiplies with, packed once for all sequences.
template <class T>
struct PackedCore {
  PackedCore(const Kernels<T>& kernels, const CoreWeights& weights, int64_t heads_, int64_t rows, int64_t width,
             bool backward)
      : heads(heads_),
        released(weights.compress_weight.defined()),
        cross(weights.other.defined()),
        groups(released || cross ? 1 : 3),
        d_p(rows / (groups * heads_)),
        d(width) {
    const auto linear = [&](const at::Tensor& weight, const at::Tensor& bias) {
      return HeadLinear<T>(kernels, weight, bias, heads, backward, scratch);
    };
    constexpr auto type = c10::CppTypeToScalarType<T>::value;
    first = released ? linear(weights.compress_weight, weights.compress_bias)
                     : linear(weights.query_weight, weights.query_bias);
    if (released) {
      query = linear(weights.query_weight, weights.query_bias);
      norm_weight = weights.norm_weight.to(type).contiguous();
      norm_bias = weights.norm_bias.to(type).contiguous();
    }
    key = linear(weights.key_weight, weights.key_bias);
    value = linear(weights.value_weight, weights.value_bias);
    other = cross ? weights.other.to(type).contiguous() : at::Tensor();
    out = weights.out_weight.to(type).contiguous();
    d_out = out.size(0);
    has_width = weights.width.defined();
    e = has_width ? weights.width.size(2) : key.width();
    const auto of_width = has_width ? weights.width.to(type).contiguous() : at::Tensor();
    std::vector<Panels<T>> of_out, of_out_plain;
    for (int64_t head = 0; head < heads; ++head) {
      if (backward) {
        of_out_plain.push_back(right_factor_scratch(kernels, d_out, value.width(), scratch));
      } else {
        of_out.push_back(scratch.panels(kernels, value.width(), d_out));
        out_transposed.push_back(fixed(of_out.back()));
      }
      if (has_width) {
        const auto r = of_width.template const_data_ptr<T>() + head * key.width() * e;
        const auto plain = scratch.panels(kernels, key.width(), e);
        kernels.pack(r, e, plain, key.width(), e);
        width_plain.push_back(fixed(plain));
        if (backward) {
          const auto r_transposed = scratch.panels(kernels, e, key.width());
          kernels.pack_transposed(r, e, r_transposed, key.width(), e);
          width_transposed.push_back(fixed(r_transposed));
        }
      }
    }
    out_plain.resize(of_out_plain.size());
    // The large matrices, by heads: of few sequences their packing is much of the work.
    constexpr int64_t kLeastNumbers = int64_t{1} << 16;
    std::vector<HeadLinear<T>*> linears{&first, &key, &value};
    if (released) {
      linears.push_back(&query);
    }
    const auto count = static_cast<int64_t>(linears.size()) + 1;
    const auto least = std::max<int64_t>(kLeastNumbers / std::max<int64_t>(value.width() * d_out, 1), 1);
    at::parallel_for(0, count * heads, least, [&](int64_t from, int64_t to) {
      for (auto i = from; i < to; ++i) {
        const auto head = i % heads, matrix = i / heads;
        if (matrix < count - 1) {
          linears[static_cast<size_t>(matrix)]->pack(kernels, head);
          continue;
        }
        const auto h = static_cast<size_t>(head);
        const T* const columns = out.template const_data_ptr<T>() + head * value.width();
        if (backward) {
          out_plain[h] = right_factor(kernels, columns, out.size(1), d_out, value.width(), of_out_plain[h]);
        } else {
          kernels.pack_transposed(columns, out.size(1), of_out[h], d_out, value.width());
        }
      }
    });
  }

  /// Whether keys and values are projected from rows of the layer's own width, not from summaries.
  bool from_source() const {
    return released || cross;
  }

  /// Numbers in a row of what the summaries are lifted to, all heads of group 0, of the keys and of the values; 0
  /// where keys and values come from elsewhere.
  int64_t projected_width() const {
    return from_source() ? 0 : heads * (first.width() + key.width() + value.width());
  }
  /// Where a head's are in it.
  int64_t projected_column(int64_t group, int64_t head) const {
    switch (group) {
      case 0:
        return head * first.width();
      case 1:
        return heads * first.width() + head * key.width();
      default:
        return heads * (first.width() + key.width()) + head * value.width();
    }
  }

  Scratch scratch;
  int64_t heads;
  bool released, cross;
  int64_t groups, d_p, d;
  int64_t d_out = 0, e = 0;
  bool has_width = false;
  HeadLinear<T> first;              // of group 0: W_Q in form paper, P_v in form released
  HeadLinear<T> query, key, value;  // query in form released only
  at::Tensor norm_weight, norm_bias, other, out;
  std::vector<Panels<const T>> out_transposed, out_plain;      // forward: (g × d_out), backward: (d_out × g)
  std::vector<Panels<const T>> width_plain, width_transposed;  // (w × e), (e × w)
};

}  // namespace dba::ops::cpu

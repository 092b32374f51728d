#pragma once

#include <algorithm>

#include "ops/cpu/core_forward.h"
#include "ops/cpu/core_sums.h"

namespace dba::ops::cpu {

/// What a stack of sequences is given and gets of its own.
template <class T>
struct CoreStack {
  const T *c, *r;             // (sequences, L, d), (sequences, L)
  const T* projections;       // (sequences, d_p, core.projected_width()) of the forward, or null
  const T *dm, *dcompressed;  // (sequences, H·d_p, d_out), (sequences, d_p, H·w); null: zero
  T *dc, *dr, *dother;        // like c, like r, (sequences, d_p, ·) or null
};

/// One thread's gradients, stack by stack.
template <class T>
class CoreBackward {
 public:
  CoreBackward(const Kernels<T>& kernels, const PackedCore<T>& core, const MaskSource<T>& masks, int64_t sequences)
      : k_(kernels), core_(core), forward_(kernels, core, masks, sequences, /*backward=*/true) {
    const auto matrix = [&](int64_t columns) { return forward_.scratch.panels(k_, forward_.capacity, columns); };
    const auto per_head = [&](int64_t columns) {
      std::vector<Panels<T>> heads;
      for (int64_t head = 0; head < core.heads; ++head) {
        heads.push_back(matrix(columns));
      }
      return heads;
    };
    dm_ = matrix(core.d_out);
    dmixed_ = per_head(core.value.width());
    dvalues_ = matrix(core.value.width());
    dp_ = matrix(core.d_p);
    dq_ = matrix(core.e);
    dk_ = matrix(core.e);
    dqueries_ = per_head(core.key.width());
    dkeys_ = matrix(core.key.width());
    dlifted_ = per_head(core.first.width());
    dsummary_ = matrix(core.d);
    if (core.from_source()) {
      dsource_ = matrix(core.key.inputs() + 1);
    }
    joined_ = forward_.scratch.template take<T>(forward_.capacity * core.heads *
                                                std::max(core.first.width(), core.value.width()));
    scale_ = forward_.scratch.template take<T>(forward_.capacity);
    std::fill_n(scale_, forward_.capacity, forward_.scale);
  }

  /// `add`: the sums hold something already.
  void run(const CoreStack<T>& to, int64_t first_sequence, int64_t sequences, bool add, const CoreSums<T>& sums) {
    forward_.run(to.c, to.r, first_sequence, sequences, to.projections);
    for (int64_t head = 0; head < core_.heads; ++head) {
      differentiate_mix(head, add, to.dm, sums);
    }
    if (core_.released) {
      differentiate_norm(sums);
    }
    for (int64_t head = 0; head < core_.heads; ++head) {
      differentiate_head(head, add, to, sums);
    }
    differentiate_lift(add, to, sums);
  }

 private:
  /// dsum = aᵀ b over the stacked rows.
  void add_product(Panels<T> a, Panels<const T> b, Panels<T> sum, int64_t a_columns, int64_t b_columns, bool add) {
    k_.multiply_transposed(fixed(a), b, sum, a_columns, b_columns, forward_.rows, add);
  }

  /// The gradients of a head's weights and bias, from that of what it projects `input` to.
  void add_linear(const HeadLinear<T>& linear, int64_t head, Panels<T> gradient, Panels<const T> input,
                  const T* bias_factors, const LinearSums<T>& sums, bool add) {
    const auto h = static_cast<size_t>(head);
    add_product(gradient, input, sums.weight[h], linear.width(), linear.inputs(), add);
    if (linear.has_bias()) {
      k_.multiply({bias_factors, k_.panel, forward_.rows}, fixed(gradient), sums.bias[h], 1, linear.width(),
                  forward_.rows, add);
    }
  }

  void differentiate_mix(int64_t head, bool add, const T* dm, const CoreSums<T>& sums) {
    const auto h = static_cast<size_t>(head);
    const auto width = core_.d_out;
    for (int64_t i = 0; i < forward_.count; ++i) {
      const auto place = forward_.of_sequence(dm_, i);
      if (dm != nullptr) {
        k_.pack(dm + (i * core_.heads + head) * core_.d_p * width, width, place, core_.d_p, width);
      } else {
        clear(place, core_.d_p, width);
      }
    }
    k_.multiply(fixed(dm_), core_.out_plain[h], dmixed_[h], forward_.rows, core_.value.width(), width, /*add=*/false);
    add_product(dm_, fixed(forward_.output_heads()[h]), sums.out[h], width, core_.value.width(), add);
  }

  /// LayerNorm: dx = rstd (g − mean(g) − x̂ mean(g x̂)) with g = dy ∘ weight.
  void differentiate_norm(const CoreSums<T>& sums) {
    const auto width = core_.heads * core_.value.width();
    const T* const weight = core_.norm_weight.template const_data_ptr<T>();
    forward_.join(dmixed_, core_.value.width(), joined_);
    for (int64_t i = 0; i < forward_.rows; ++i) {
      T* const row = joined_ + i * width;
      const T* const unit = forward_.centred + i * width;
      double mean = 0, along = 0;
      for (int64_t j = 0; j < width; ++j) {
        sums.norm_weight[j] += row[j] * unit[j];
        sums.norm_bias[j] += row[j];
        row[j] *= weight[j];
        mean += row[j];
        along += static_cast<double>(row[j]) * unit[j];
      }
      mean /= static_cast<double>(width);
      along /= static_cast<double>(width);
      for (int64_t j = 0; j < width; ++j) {
        row[j] = forward_.rstd[i] * static_cast<T>(row[j] - mean - unit[j] * along);
      }
    }
    forward_.split(joined_, core_.value.width(), dmixed_);
  }

  void differentiate_head(int64_t head, bool add, const CoreStack<T>& to, const CoreSums<T>& sums) {
    const auto h = static_cast<size_t>(head);
    const auto d_p = core_.d_p;
    const auto g = core_.value.width();
    for (int64_t i = 0; i < forward_.count; ++i) {
      const auto of = [&](Panels<T> stacked) { return forward_.of_sequence(stacked, i); };
      const auto dmixed = fixed(of(dmixed_[h]));
      k_.multiply_transposed(fixed(of(forward_.dropped[h])), dmixed, of(dvalues_), d_p, g, d_p, /*add=*/false);
      k_.multiply(dmixed, forward_.transpose(of(forward_.values[h]), g), of(dp_), d_p, d_p, g, /*add=*/false);
      const auto mask = forward_.masks.active() ? fixed(of(forward_.mask[h])) : kNothing<T>;
      k_.restore_gradient(fixed(of(forward_.p[h])), mask, of(dp_), 1, /*linear=*/false, d_p, d_p);
      k_.scale_rows(of(dp_), scale_, d_p, d_p);
      k_.multiply(fixed(of(dp_)), fixed(of(forward_.k_narrow[h])), of(dq_), d_p, core_.e, d_p, /*add=*/false);
      k_.multiply_transposed(fixed(of(dp_)), fixed(of(forward_.q[h])), of(dk_), d_p, core_.e, d_p, /*add=*/false);
    }
    const auto w = core_.key.width();
    if (core_.has_width) {
      add_product(forward_.query_heads()[h], fixed(dq_), sums.width[h], w, core_.e, add);
      add_product(forward_.keys[h], fixed(dk_), sums.width[h], w, core_.e, /*add=*/true);
      k_.multiply(fixed(dq_), core_.width_transposed[h], dqueries_[h], forward_.rows, w, core_.e, /*add=*/false);
      k_.multiply(fixed(dk_), core_.width_transposed[h], dkeys_, forward_.rows, w, core_.e, /*add=*/false);
    } else {
      copy(dq_, dqueries_[h], w);
      copy(dk_, dkeys_, w);
    }
    add_linear(core_.key, head, dkeys_, forward_.input(1, head), forward_.bias_factors(1, head), sums.key, add);
    add_linear(core_.value, head, dvalues_, forward_.input(2, head), forward_.bias_factors(2, head), sums.value, add);
    if (core_.from_source()) {
      k_.multiply(fixed(dkeys_), core_.key.plain(head), dsource_, forward_.rows, core_.key.inputs(), w, head > 0);
      k_.multiply(fixed(dvalues_), core_.value.plain(head), dsource_, forward_.rows, core_.value.inputs(), g,
                  /*add=*/true);
    } else {
      put_summary(core_.key, head, 1, dkeys_, to);
      put_summary(core_.value, head, 2, dvalues_, to);
    }
  }

  /// What group 0 was lifted to, and through it the summaries.
  void differentiate_lift(bool add, const CoreStack<T>& to, const CoreSums<T>& sums) {
    const auto width = core_.heads * core_.first.width();
    const auto count = forward_.rows * width;
    if (core_.released) {
      for (int64_t head = 0; head < core_.heads; ++head) {
        const auto h = static_cast<size_t>(head);
        add_linear(core_.query, head, dqueries_[h], fixed(forward_.query_input), forward_.ones, sums.query, add);
        // In self-attention the keys and values come from the same rows.
        if (core_.cross && head == 0) {
          k_.unpack(fixed(dsource_), nullptr, to.dother, core_.key.inputs(), forward_.rows, core_.key.inputs());
        }
        k_.multiply(fixed(dqueries_[h]), core_.query.plain(head), dsource_, forward_.rows, width, core_.query.width(),
                    /*add=*/head > 0 || !core_.cross);
      }
      k_.unpack(fixed(dsource_), nullptr, joined_, width, forward_.rows, width);
    } else {
      if (core_.cross) {
        k_.unpack(fixed(dsource_), nullptr, to.dother, core_.key.inputs(), forward_.rows, core_.key.inputs());
      }
      forward_.join(dqueries_, core_.first.width(), joined_);
    }
    if (to.dcompressed != nullptr) {
      const T* const given = to.dcompressed;
      for (int64_t i = 0; i < count; ++i) {
        joined_[i] += given[i];
      }
    }
    forward_.split(joined_, core_.first.width(), dlifted_);
    for (int64_t head = 0; head < core_.heads; ++head) {
      const auto h = static_cast<size_t>(head);
      add_linear(core_.first, head, dlifted_[h], forward_.summary(0, head), forward_.summary_sums(0, head), sums.first,
                 add);
      put_summary(core_.first, head, 0, dlifted_[h], to);
    }
  }

  void put_summary(const HeadLinear<T>& linear, int64_t head, int64_t group, Panels<T> gradient,
                   const CoreStack<T>& to) {
    const auto d = core_.d;
    const bool in_place = d % k_.lanes == 0;
    for (int64_t i = 0; i < forward_.count; ++i) {
      const auto row = ((i * core_.groups + group) * core_.heads + head) * core_.d_p;
      const auto target = in_place ? Panels<T>{to.dc + row * d, k_.panel, d} : forward_.of_sequence(dsummary_, i);
      const auto of_rows = fixed(forward_.of_sequence(gradient, i));
      k_.multiply(of_rows, linear.plain(head), target, core_.d_p, d, linear.width(), /*add=*/false);
      if (!in_place) {
        k_.unpack(fixed(target), nullptr, to.dc + row * d, d, core_.d_p, d);
      }
      if (linear.has_bias()) {
        k_.row_products(of_rows, linear.bias(head), to.dr + row, core_.d_p, linear.width());
      } else {
        std::fill_n(to.dr + row, core_.d_p, T(0));
      }
    }
  }

  void clear(Panels<T> matrix, int64_t rows, int64_t columns) const {
    for (int64_t j = 0; j < columns; j += k_.panel) {
      std::fill_n(matrix.entries + j / k_.panel * matrix.stride, rows * k_.panel, T(0));
    }
  }
  void copy(Panels<T> from, Panels<T> to, int64_t columns) const {
    for (int64_t j = 0; j < columns; j += k_.panel) {
      std::copy_n(from.entries + j / k_.panel * from.stride, forward_.rows * k_.panel,
                  to.entries + j / k_.panel * to.stride);
    }
  }

  const Kernels<T>& k_;
  const PackedCore<T>& core_;
  CoreForward<T> forward_;
  Panels<T> dm_, dvalues_, dp_, dq_, dk_, dkeys_, dsummary_, dsource_{};
  std::vector<Panels<T>> dmixed_, dqueries_, dlifted_;
  T *joined_, *scale_;
};

}  // namespace dba::ops::cpu

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "ops/cpu/core_forward.h"
#include "ops/cpu/core_pass.h"
#include "ops/cpu/core_sums.h"
#include "ops/cpu/passes.h"

namespace dba::ops::cpu {
namespace {

/// Where the gradients of one call go that belong to single sequences.
template <class T>
struct Outputs {
  T *dc, *dr, *dother;        // (B, L, d), (B, L), (B, d_p, ·) or null
  const T *dm, *dcompressed;  // null: zero
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
    dsums_ = matrix(1);
    if (core.from_source()) {
      dsource_ = matrix(core.key.inputs() + 1);
    }
    joined_ = forward_.scratch.template take<T>(forward_.capacity * core.heads *
                                                std::max(core.first.width(), core.value.width()));
    scale_ = forward_.scratch.template take<T>(forward_.capacity);
    std::fill_n(scale_, forward_.capacity, forward_.scale);
  }

  void run(const T* c, const T* r, int64_t first_sequence, int64_t sequences, bool add, const Outputs<T>& to,
           const CoreSums<T>& sums) {
    forward_.run(c, r, first_sequence, sequences);
    first_ = first_sequence;
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

  void differentiate_mix(int64_t head, bool add, const T* dm, const CoreSums<T>& sums) {
    const auto h = static_cast<size_t>(head);
    const auto width = core_.d_out;
    for (int64_t i = 0; i < forward_.count; ++i) {
      const auto place = forward_.of_sequence(dm_, i);
      if (dm != nullptr) {
        k_.pack(dm + ((first_ + i) * core_.heads + head) * core_.d_p * width, width, place, core_.d_p, width);
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

  void differentiate_head(int64_t head, bool add, const Outputs<T>& to, const CoreSums<T>& sums) {
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
    add_product(dkeys_, forward_.input(1, head), sums.key[h], w, core_.key.extended_inputs(), add);
    add_product(dvalues_, forward_.input(2, head), sums.value[h], g, core_.value.extended_inputs(), add);
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
  void differentiate_lift(bool add, const Outputs<T>& to, const CoreSums<T>& sums) {
    const auto width = core_.heads * core_.first.width();
    const auto count = forward_.rows * width;
    if (core_.released) {
      for (int64_t head = 0; head < core_.heads; ++head) {
        const auto h = static_cast<size_t>(head);
        add_product(dqueries_[h], fixed(forward_.query_input), sums.query[h], core_.query.width(),
                    core_.query.extended_inputs(), add);
        // In self-attention the keys and values come from the same rows.
        if (core_.cross && head == 0) {
          k_.unpack(fixed(dsource_), nullptr, to.dother + first_ * core_.d_p * core_.key.inputs(), core_.key.inputs(),
                    forward_.rows, core_.key.inputs());
        }
        k_.multiply(fixed(dqueries_[h]), core_.query.plain(head), dsource_, forward_.rows, width, core_.query.width(),
                    /*add=*/head > 0 || !core_.cross);
      }
      k_.unpack(fixed(dsource_), nullptr, joined_, width, forward_.rows, width);
    } else {
      if (core_.cross) {
        k_.unpack(fixed(dsource_), nullptr, to.dother + first_ * core_.d_p * core_.key.inputs(), core_.key.inputs(),
                  forward_.rows, core_.key.inputs());
      }
      forward_.join(dqueries_, core_.first.width(), joined_);
    }
    if (to.dcompressed != nullptr) {
      const T* const given = to.dcompressed + first_ * core_.d_p * width;
      for (int64_t i = 0; i < count; ++i) {
        joined_[i] += given[i];
      }
    }
    forward_.split(joined_, core_.first.width(), dlifted_);
    for (int64_t head = 0; head < core_.heads; ++head) {
      const auto h = static_cast<size_t>(head);
      add_product(dlifted_[h], fixed(forward_.summaries[0][h]), sums.first[h], core_.first.width(),
                  core_.first.extended_inputs(), add);
      put_summary(core_.first, head, 0, dlifted_[h], to);
    }
  }

  void put_summary(const HeadLinear<T>& linear, int64_t head, int64_t group, Panels<T> gradient, const Outputs<T>& to) {
    const auto d = core_.d;
    const bool in_place = d % k_.lanes == 0;
    if (linear.has_bias()) {
      k_.multiply(fixed(gradient), linear.bias_column(head), dsums_, forward_.rows, 1, linear.width(), /*add=*/false);
    }
    for (int64_t i = 0; i < forward_.count; ++i) {
      const auto row = (((first_ + i) * core_.groups + group) * core_.heads + head) * core_.d_p;
      const auto target = in_place ? Panels<T>{to.dc + row * d, k_.panel, d} : forward_.of_sequence(dsummary_, i);
      k_.multiply(fixed(forward_.of_sequence(gradient, i)), linear.plain(head), target, core_.d_p, d, linear.width(),
                  /*add=*/false);
      if (!in_place) {
        k_.unpack(fixed(target), nullptr, to.dc + row * d, d, core_.d_p, d);
      }
      for (int64_t j = 0; j < core_.d_p; ++j) {
        to.dr[row + j] = linear.has_bias() ? forward_.entry(dsums_, i * core_.d_p + j, 0) : T(0);
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
  int64_t first_ = 0;
  Panels<T> dm_, dvalues_, dp_, dq_, dk_, dkeys_, dsummary_, dsums_, dsource_{};
  std::vector<Panels<T>> dmixed_, dqueries_, dlifted_;
  T *joined_, *scale_;
};

template <class T>
reference::CoreGradients core_backward_as(const at::Tensor& c_, const at::Tensor& r_, const CoreWeights& weights,
                                          int64_t heads, const Dropout& dropout, const at::Tensor& dm_,
                                          const at::Tensor& dcompressed_) {
  constexpr int64_t kMostUnits = 16;
  constexpr int64_t kMostNumbers = int64_t{1} << 22;
  const auto& k = kernels<T>();
  const auto settled = [](const at::Tensor& t) {
    return t.defined() ? t.to(c10::CppTypeToScalarType<T>::value).contiguous() : t;
  };
  const auto c = settled(c_), r = settled(r_), dm = settled(dm_), dcompressed = settled(dcompressed_);
  const auto batch = c.size(0);
  const PackedCore<T> packed(k, weights, heads, c.size(1), c.size(2), /*backward=*/true);
  const MaskSource<T> masks(dropout, kSiteCore);
  reference::CoreGradients result;
  result.dc = at::empty(c.sizes(), c.options());
  result.dr = at::empty(r.sizes(), r.options());
  auto& grad = result.weights;
  grad.other = packed.cross ? at::empty(packed.other.sizes(), packed.other.options()) : at::Tensor();
  const auto data = [](at::Tensor& t) { return t.defined() ? t.mutable_data_ptr<T>() : nullptr; };
  const auto given = [](const at::Tensor& t) { return t.defined() ? t.const_data_ptr<T>() : nullptr; };
  const Outputs<T> outputs{data(result.dc), data(result.dr), data(grad.other), given(dm), given(dcompressed)};

  const auto stack = stacked_sequences(batch, packed.d_p);
  const auto stacks = (batch + stack - 1) / stack;
  const auto most = std::clamp<int64_t>(kMostNumbers / CoreSums<T>::numbers(packed), 2, kMostUnits);
  const auto per_unit = std::max<int64_t>((stacks + most - 1) / most, 1);
  const auto units = (stacks + per_unit - 1) / per_unit;
  Scratch scratch;
  std::vector<CoreSums<T>> sums;
  for (int64_t i = 0; i < units; ++i) {
    sums.emplace_back(k, packed, scratch);
  }
  at::parallel_for(0, units, 1, [&](int64_t from, int64_t to) {
    CoreBackward<T> backward(k, packed, masks, stack);
    for (auto unit = from; unit < to; ++unit) {
      const auto last = std::min(stacks, (unit + 1) * per_unit);
      for (auto i = unit * per_unit; i < last; ++i) {
        backward.run(c.template const_data_ptr<T>(), r.template const_data_ptr<T>(), i * stack,
                     std::min(stack, batch - i * stack), /*add=*/i > unit * per_unit, outputs,
                     sums[static_cast<size_t>(unit)]);
      }
    }
  });
  const CoreTotals<T> totals(k, packed, sums);
  if (packed.released) {
    totals.put(&CoreSums<T>::first, packed.first, grad.compress_weight, grad.compress_bias);
    totals.put(&CoreSums<T>::query, packed.query, grad.query_weight, grad.query_bias);
    grad.norm_weight = totals.norm(&CoreSums<T>::norm_weight);
    grad.norm_bias = totals.norm(&CoreSums<T>::norm_bias);
  } else {
    totals.put(&CoreSums<T>::first, packed.first, grad.query_weight, grad.query_bias);
  }
  totals.put(&CoreSums<T>::key, packed.key, grad.key_weight, grad.key_bias);
  totals.put(&CoreSums<T>::value, packed.value, grad.value_weight, grad.value_bias);
  grad.width = packed.has_width ? totals.width() : at::Tensor();
  grad.out_weight = totals.out();
  return result;
}

}  // namespace

reference::CoreGradients core_backward(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights,
                                       int64_t heads, const Dropout& dropout, const at::Tensor& dm,
                                       const at::Tensor& dcompressed) {
  return in_accumulation_type(c.scalar_type(), [&](auto zero) {
    return core_backward_as<decltype(zero)>(c, r, weights, heads, dropout, dm, dcompressed);
  });
}

}  // namespace dba::ops::cpu

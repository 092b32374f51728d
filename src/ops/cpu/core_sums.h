#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "ops/cpu/core_weights.h"

namespace dba::ops::cpu {

/// Gradients of core's weights, summed over the sequences of one unit of work.
template <class T>
struct CoreSums {
  using PerHead = std::vector<Panels<T>>;

  CoreSums(const Kernels<T>& kernels, const PackedCore<T>& core, Scratch& scratch) {
    const auto per_head = [&](int64_t rows, int64_t columns) {
      PerHead heads;
      for (int64_t head = 0; head < core.heads; ++head) {
        heads.push_back(scratch.panels(kernels, rows, columns));
      }
      return heads;
    };
    const auto like = [&](const HeadLinear<T>& linear) { return per_head(linear.width(), linear.extended_inputs()); };
    first = like(core.first);
    if (core.released) {
      query = like(core.query);
      norm_weight = scratch.zeros<T>(core.heads * core.value.width());
      norm_bias = scratch.zeros<T>(core.heads * core.value.width());
    }
    key = like(core.key);
    value = like(core.value);
    if (core.has_width) {
      width = per_head(core.key.width(), core.e);
    }
    out = per_head(core.d_out, core.value.width());
  }

  static int64_t numbers(const PackedCore<T>& core) {
    const auto of = [&](const HeadLinear<T>& linear) { return core.heads * linear.width() * linear.extended_inputs(); };
    return of(core.first) + of(core.query) + of(core.key) + of(core.value) +
           core.heads * core.value.width() * core.d_out;
  }

  PerHead first, query, key, value;  // (w × inputs and bias)
  PerHead width, out;                // (w × e), (d_out × g)
  T *norm_weight = nullptr, *norm_bias = nullptr;
};

/// Adds up the units' sums, in order, and lays them out as the weights are.
template <class T>
class CoreTotals {
 public:
  CoreTotals(const Kernels<T>& kernels, const PackedCore<T>& core, const std::vector<CoreSums<T>>& units)
      : kernels_(kernels), core_(core), units_(units) {}

  void put(CoreWeights& gradients) const {
    auto& g = gradients;
    if (core_.released) {
      put(&CoreSums<T>::first, core_.first, g.compress_weight, g.compress_bias);
      put(&CoreSums<T>::query, core_.query, g.query_weight, g.query_bias);
      g.norm_weight = norm(&CoreSums<T>::norm_weight);
      g.norm_bias = norm(&CoreSums<T>::norm_bias);
    } else {
      put(&CoreSums<T>::first, core_.first, g.query_weight, g.query_bias);
    }
    put(&CoreSums<T>::key, core_.key, g.key_weight, g.key_bias);
    put(&CoreSums<T>::value, core_.value, g.value_weight, g.value_bias);
    g.width = core_.has_width ? width() : at::Tensor();
    g.out_weight = out();
  }

 private:
  static constexpr auto kType = c10::CppTypeToScalarType<T>::value;
  using PerHead = typename CoreSums<T>::PerHead;

  void put(PerHead CoreSums<T>::*member, const HeadLinear<T>& linear, at::Tensor& weight, at::Tensor& bias) const {
    const auto inputs = linear.inputs();
    weight = at::empty({core_.heads * linear.width(), inputs}, kType);
    bias = linear.has_bias() ? at::empty({core_.heads * linear.width()}, kType) : at::Tensor();
    T* const to = weight.mutable_data_ptr<T>();
    T* const to_bias = linear.has_bias() ? bias.mutable_data_ptr<T>() : nullptr;
    each_row(linear.width(), [&](int64_t head, int64_t i, int64_t row) {
      total(member, head, i, 0, inputs, to + row * inputs);
      if (to_bias != nullptr) {
        total(member, head, i, inputs, 1, to_bias + row);
      }
    });
  }
  at::Tensor width() const {
    at::Tensor result = at::empty({core_.heads, core_.key.width(), core_.e}, kType);
    T* const to = result.mutable_data_ptr<T>();
    each_row(core_.key.width(), [&](int64_t head, int64_t i, int64_t row) {
      total(&CoreSums<T>::width, head, i, 0, core_.e, to + row * core_.e);
    });
    return result;
  }
  at::Tensor out() const {
    const auto g = core_.value.width();
    at::Tensor result = at::empty({core_.d_out, core_.heads * g}, kType);
    T* const to = result.mutable_data_ptr<T>();
    each_row(core_.d_out, [&](int64_t head, int64_t i, int64_t /*row*/) {
      total(&CoreSums<T>::out, head, i, 0, g, to + (i * core_.heads + head) * g);
    });
    return result;
  }
  at::Tensor norm(T* CoreSums<T>::*member) const {
    const auto width = core_.heads * core_.value.width();
    at::Tensor result = at::zeros({width}, kType);
    for (const auto& unit : units_) {
      for (int64_t j = 0; j < width; ++j) {
        result.mutable_data_ptr<T>()[j] += (unit.*member)[j];
      }
    }
    return result;
  }

  /// Calls visit(head, i, row) for row i of each head, where each has `rows`.
  template <class Visit>
  void each_row(int64_t rows, Visit visit) const {
    at::parallel_for(0, core_.heads * rows, 64, [&](int64_t from, int64_t to) {
      for (auto row = from; row < to; ++row) {
        visit(row / rows, row % rows, row);
      }
    });
  }

  /// Columns first … of row i, over all units.
  void total(PerHead CoreSums<T>::*member, int64_t head, int64_t i, int64_t first, int64_t columns, T* to) const {
    const auto panel = kernels_.panel;
    std::fill_n(to, columns, T(0));
    for (const auto& unit : units_) {
      const auto& sums = (unit.*member)[static_cast<size_t>(head)];
      for (int64_t j = 0; j < columns;) {
        const auto column = first + j;
        const auto run = std::min(columns - j, panel - column % panel);
        const T* const from = sums.entries + column / panel * sums.stride + i * panel + column % panel;
        for (int64_t at = 0; at < run; ++at) {
          to[j + at] += from[at];
        }
        j += run;
      }
    }
  }

  const Kernels<T>& kernels_;
  const PackedCore<T>& core_;
  const std::vector<CoreSums<T>>& units_;
};

}  // namespace dba::ops::cpu

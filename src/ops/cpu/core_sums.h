#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "ops/cpu/core_weights.h"
#include "ops/cpu/totals.h"

namespace dba::ops::cpu {

/// Of a linear layer, by head.
template <class T>
struct LinearSums {
  std::vector<Panels<T>> weight, bias;  // (w × inputs), (1 × w)
};

/// Gradients of core's weights, summed over the sequences of one unit of work.
template <class T>
struct CoreSums {
  using PerHead = std::vector<Panels<T>>;

  /// `gradients`: of the first unit, which makes them and sums up in them where their widths allow it; else null.
  CoreSums(const Kernels<T>& kernels, const PackedCore<T>& core, Scratch& scratch, CoreWeights* gradients)
      : kernels_(kernels), core_(core), scratch_(scratch) {
    CoreWeights unused;
    auto& g = gradients != nullptr ? *gradients : unused;
    const bool make = gradients != nullptr;
    first = like(core.first, core.released ? g.compress_weight : g.query_weight, make);
    if (core.released) {
      query = like(core.query, g.query_weight, make);
      norm_weight = scratch.zeros<T>(core.heads * core.value.width());
      norm_bias = scratch.zeros<T>(core.heads * core.value.width());
    }
    key = like(core.key, g.key_weight, make);
    value = like(core.value, g.value_weight, make);
    if (core.has_width) {
      width = per_head(core.key.width(), core.e);
    }
    const auto values = core.value.width();
    if (make) {
      g.out_weight = at::empty({core.d_out, core.heads * values}, kType);
    }
    out = per_head(core.d_out, values, g.out_weight, values, core.heads * values);
  }

  static int64_t numbers(const PackedCore<T>& core) {
    const auto of = [&](const HeadLinear<T>& linear) { return core.heads * linear.width() * linear.extended_inputs(); };
    return of(core.first) + of(core.query) + of(core.key) + of(core.value) +
           core.heads * core.value.width() * core.d_out;
  }

  LinearSums<T> first, query, key, value;
  PerHead width, out;  // (w × e), (d_out × g)
  T *norm_weight = nullptr, *norm_bias = nullptr;

 private:
  static constexpr auto kType = c10::CppTypeToScalarType<T>::value;

  /// In `place`, where that is a tensor, its heads `head_stride` and its rows `row_stride` apart.
  PerHead per_head(int64_t rows, int64_t columns, const at::Tensor& place = {}, int64_t head_stride = 0,
                   int64_t row_stride = 0) {
    PerHead heads;
    for (int64_t head = 0; head < core_.heads; ++head) {
      heads.push_back(place.defined() && columns % kernels_.lanes == 0
                          ? Panels<T>{place.mutable_data_ptr<T>() + head * head_stride, kernels_.panel, row_stride}
                          : scratch_.panels(kernels_, rows, columns));
    }
    return heads;
  }
  LinearSums<T> like(const HeadLinear<T>& linear, at::Tensor& weight, bool make) {
    const auto rows = linear.width(), inputs = linear.inputs();
    if (make) {
      weight = at::empty({core_.heads * rows, inputs}, kType);
    }
    return {per_head(rows, inputs, weight, rows * inputs, inputs), per_head(1, rows)};
  }

  const Kernels<T>& kernels_;
  const PackedCore<T>& core_;
  Scratch& scratch_;
};

/// Adds up the units' sums and lays them out as the weights are.
template <class T>
class CoreTotals {
 public:
  CoreTotals(const Kernels<T>& kernels, const PackedCore<T>& core, const std::vector<CoreSums<T>>& units)
      : core_(core), units_(units), totals_(kernels) {}

  /// `gradients` are those that the first unit made.
  void put(CoreWeights& gradients) {
    auto& g = gradients;
    if (core_.released) {
      add(&CoreSums<T>::first, core_.first, g.compress_weight, g.compress_bias);
      add(&CoreSums<T>::query, core_.query, g.query_weight, g.query_bias);
      g.norm_weight = norm(&CoreSums<T>::norm_weight);
      g.norm_bias = norm(&CoreSums<T>::norm_bias);
    } else {
      add(&CoreSums<T>::first, core_.first, g.query_weight, g.query_bias);
    }
    add(&CoreSums<T>::key, core_.key, g.key_weight, g.key_bias);
    add(&CoreSums<T>::value, core_.value, g.value_weight, g.value_bias);
    if (core_.has_width) {
      g.width = at::empty({core_.heads, core_.key.width(), core_.e}, kType);
    }
    const auto values = core_.value.width();
    make_unless_made(g.out_weight, core_.d_out, core_.heads * values);
    for (int64_t head = 0; head < core_.heads; ++head) {
      if (core_.has_width) {
        add(&CoreSums<T>::width, head, core_.key.width(), core_.e, entry(g.width, head * core_.key.width() * core_.e),
            core_.e);
      }
      add(&CoreSums<T>::out, head, core_.d_out, values, entry(g.out_weight, head * values), core_.heads * values);
    }
    totals_.make();
  }

 private:
  static constexpr auto kType = c10::CppTypeToScalarType<T>::value;
  using PerHead = typename CoreSums<T>::PerHead;

  /// Without tokens there is no unit.
  static void make_unless_made(at::Tensor& gradient, int64_t rows, int64_t columns) {
    if (!gradient.defined()) {
      gradient = at::empty({rows, columns}, kType);
    }
  }
  static T* entry(const at::Tensor& tensor, int64_t index) {
    return tensor.mutable_data_ptr<T>() + index;
  }
  void add(LinearSums<T> CoreSums<T>::*member, const HeadLinear<T>& linear, at::Tensor& weight, at::Tensor& bias) {
    const auto width = linear.width(), inputs = linear.inputs();
    make_unless_made(weight, core_.heads * width, inputs);
    bias = linear.has_bias() ? at::empty({core_.heads * width}, kType) : at::Tensor();
    for (int64_t head = 0; head < core_.heads; ++head) {
      std::vector<Panels<T>> weights, terms;
      for (const auto& unit : units_) {
        weights.push_back((unit.*member).weight[static_cast<size_t>(head)]);
        terms.push_back((unit.*member).bias[static_cast<size_t>(head)]);
      }
      totals_.add(std::move(weights), width, inputs, entry(weight, head * width * inputs), inputs);
      if (linear.has_bias()) {
        totals_.add(std::move(terms), 1, width, entry(bias, head * width), width);
      }
    }
  }
  void add(PerHead CoreSums<T>::*member, int64_t head, int64_t rows, int64_t columns, T* to, int64_t row_stride) {
    std::vector<Panels<T>> parts;
    for (const auto& unit : units_) {
      parts.push_back((unit.*member)[static_cast<size_t>(head)]);
    }
    totals_.add(std::move(parts), rows, columns, to, row_stride);
  }
  at::Tensor norm(T* CoreSums<T>::*member) {
    const auto width = core_.heads * core_.value.width();
    auto result = at::zeros({width}, kType);
    for (const auto& unit : units_) {
      for (int64_t j = 0; j < width; ++j) {
        result.template mutable_data_ptr<T>()[j] += (unit.*member)[j];
      }
    }
    return result;
  }

  const PackedCore<T>& core_;
  const std::vector<CoreSums<T>>& units_;
  Totals<T> totals_;
};

}  // namespace dba::ops::cpu

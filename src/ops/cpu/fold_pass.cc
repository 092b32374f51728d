#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/checks.h"
#include "ops/cpu/passes.h"
#include "ops/cpu/scratch.h"
#include "ops/fold.h"
#include "ops/fused.h"

/// `fold` and its gradient: a few products for each head, so small that ATen's calls cost more than they do.
namespace dba::ops::cpu {
namespace {

using at::Tensor;

/// Rows of other types are few and rarely asked for, as are sizes of 0: the reference serves.
bool use_products(const char* function, const FoldCall& call) {
  const auto type = call.type();
  return (type == at::kFloat || type == at::kDouble) && call.z.numel() > 0 && call.d() > 0 && use_fused(function, {});
}

/// The operands in one type without gaps, and where a head's share of them lies.
template <class T>
struct Fold {
  explicit Fold(const FoldCall& call)
      : k(kernels<T>()),
        groups(static_cast<int64_t>(call.weights.size())),
        heads(call.heads),
        batch(call.each() ? call.z.size(0) : 1),
        d_p(call.d_p()),
        width(call.z.size(-1) / call.heads),
        d(call.d()),
        rows(call.rows()),
        scale(static_cast<T>(call.scale)),
        z((call.z.to(kType) * call.scale).contiguous()) {
    for (const auto& weight : call.weights) {
      weights.push_back(settled(weight));
    }
    for (const auto& bias : call.biases) {
      biases.push_back(settled(bias));
    }
  }

  static Tensor settled(const Tensor& tensor) {
    return tensor.defined() ? tensor.to(kType).contiguous() : tensor;
  }
  /// Threads get no less than this many products of a head.
  int64_t least_products() const {
    constexpr int64_t kLeastMultiplyAdds = int64_t{1} << 19;
    return std::max<int64_t>(kLeastMultiplyAdds / std::max<int64_t>(d_p * width * d, 1), 1);
  }
  /// (d_p × w), times the scale.
  const T* slots(int64_t sequence, int64_t head) const {
    return z.const_data_ptr<T>() + (sequence * d_p * heads + head) * width;
  }
  /// (w × d)
  const T* weight(int64_t group, int64_t head) const {
    return weights[static_cast<size_t>(group)].template const_data_ptr<T>() + head * width * d;
  }
  /// (w) or null
  const T* bias(int64_t group, int64_t head) const {
    const auto& all = biases[static_cast<size_t>(group)];
    return all.defined() ? all.template const_data_ptr<T>() + head * width : nullptr;
  }
  /// The first of the d_p rows of a head.
  int64_t first_row(int64_t sequence, int64_t group, int64_t head) const {
    return sequence * rows + (group * heads + head) * d_p;
  }
  /// Row-major entries as left factor, their rows `row` apart.
  Panels<const T> left(const T* entries, int64_t row) const {
    return {entries, k.panel, row};
  }
  bool in_place() const {
    return d % k.lanes == 0;
  }
  /// Where a product puts (count × d) row-major entries; `put` brings them there.
  Panels<T> target(T* entries, Panels<T> own) const {
    return in_place() ? Panels<T>{entries, k.panel, d} : own;
  }
  void put(Panels<T> from, T* entries, int64_t count) const {
    if (!in_place()) {
      k.unpack(fixed(from), nullptr, entries, d, count, d);
    }
  }

  static constexpr auto kType = c10::CppTypeToScalarType<T>::value;
  const Kernels<T>& k;
  int64_t groups, heads, batch, d_p, width, d, rows;
  T scale;
  Tensor z;
  std::vector<Tensor> weights, biases;
};

template <class T>
std::tuple<Tensor, Tensor> fold_as(const FoldCall& call) {
  const Fold<T> f(call);
  const auto options = f.z.options();
  const auto batched = [&](at::IntArrayRef sizes) { return at::empty(call.each() ? sizes : sizes.slice(1), options); };
  const auto rows = batched({f.batch, f.rows, f.d});
  const auto bias = call.has_bias() ? batched({f.batch, f.rows}) : at::empty({0}, options);
  T* const to = rows.template mutable_data_ptr<T>();
  T* const to_bias = call.has_bias() ? bias.template mutable_data_ptr<T>() : nullptr;
  at::parallel_for(0, f.batch * f.groups * f.heads, f.least_products(), [&](int64_t from, int64_t until) {
    Scratch scratch;
    const auto right = right_factor_scratch(f.k, f.width, f.d, scratch);
    const auto own = right_factor_scratch(f.k, f.d_p, f.d, scratch);
    for (auto i = from; i < until; ++i) {
      const auto head = i % f.heads, group = i / f.heads % f.groups, sequence = i / f.heads / f.groups;
      const auto slots = f.left(f.slots(sequence, head), f.heads * f.width);
      const auto row = f.first_row(sequence, group, head);
      const auto target = f.target(to + row * f.d, own);
      f.k.multiply(slots, right_factor(f.k, f.weight(group, head), f.d, f.width, f.d, right), target, f.d_p, f.d,
                   f.width, /*add=*/false);
      f.put(target, to + row * f.d, f.d_p);
      if (const T* const term = f.bias(group, head); term != nullptr) {
        f.k.row_products(slots, f.left(term, 0), to_bias + row, f.d_p, f.width);
      } else if (to_bias != nullptr) {
        std::fill_n(to_bias + row, f.d_p, T(0));
      }
    }
  });
  if (call.tail.defined()) {
    const auto first = call.folded_rows(), count = call.tail.size(0);
    rows.narrow(0, first, count).copy_(call.tail);
    if (call.tail_bias.defined()) {
      bias.narrow(0, first, count).copy_(call.tail_bias);
    } else if (to_bias != nullptr) {
      std::fill_n(to_bias + first, count, T(0));
    }
  }
  return {rows, bias};
}

/// The gradients of one projection's weights and bias, a head at a time.
template <class T>
void differentiate_weights(const Fold<T>& f, const T* drows, int64_t drows_of_sequence, const T* dbias,
                           const std::vector<Tensor>& dweights, const std::vector<Tensor>& dbiases) {
  at::parallel_for(0, f.groups * f.heads, f.least_products(), [&](int64_t from, int64_t until) {
    Scratch scratch;
    const auto right = right_factor_scratch(f.k, f.d_p, f.d, scratch);
    const auto own = right_factor_scratch(f.k, f.width, f.d, scratch);
    const auto slots = right_factor_scratch(f.k, f.d_p, f.width, scratch);
    const auto terms = scratch.panels(f.k, 1, f.width);
    for (auto i = from; i < until; ++i) {
      const auto head = i % f.heads, group = i / f.heads;
      const auto& of_bias = dbiases[static_cast<size_t>(group)];
      T* const to = dweights[static_cast<size_t>(group)].template mutable_data_ptr<T>() + head * f.width * f.d;
      const auto target = f.target(to, own);
      for (int64_t b = 0; b < f.batch; ++b) {
        const T* const z = f.slots(b, head);
        const auto row = b * drows_of_sequence + i * f.d_p;
        f.k.multiply_transposed(f.left(z, f.heads * f.width),
                                right_factor(f.k, drows + row * f.d, f.d, f.d_p, f.d, right), target, f.width, f.d,
                                f.d_p, /*add=*/b > 0);
        if (of_bias.defined()) {
          f.k.multiply(f.left(dbias + row, f.d_p), right_factor(f.k, z, f.heads * f.width, f.d_p, f.width, slots),
                       terms, 1, f.width, f.d_p,
                       /*add=*/b > 0);
        }
      }
      f.put(target, to, f.width);
      if (of_bias.defined()) {
        f.k.unpack(fixed(terms), nullptr, of_bias.template mutable_data_ptr<T>() + head * f.width, f.width, 1, f.width);
      }
    }
  });
}

template <class T>
void differentiate_slots(const Fold<T>& f, const T* drows, int64_t drows_of_sequence, const T* dbias, T* dz) {
  at::parallel_for(0, f.heads * f.batch, f.least_products(), [&](int64_t from, int64_t until) {
    Scratch scratch;
    std::vector<Panels<T>> transposed;  // (d × w), of the head at hand
    for (int64_t group = 0; group < f.groups; ++group) {
      transposed.push_back(scratch.panels(f.k, f.d, f.width));
    }
    const auto term = scratch.panels(f.k, 1, f.width);
    const auto sum = scratch.panels(f.k, f.d_p, f.width);
    T* const factors = scratch.take<T>(f.d_p);
    std::fill_n(factors, f.d_p, f.scale);
    for (auto i = from; i < until; ++i) {
      const auto head = i / f.batch, b = i % f.batch;
      for (int64_t group = 0; group < f.groups; ++group) {
        const auto right = transposed[static_cast<size_t>(group)];
        if (i == from || b == 0) {
          f.k.pack_transposed(f.weight(group, head), f.d, right, f.width, f.d);
        }
        const auto row = b * drows_of_sequence + (group * f.heads + head) * f.d_p;
        f.k.multiply(f.left(drows + row * f.d, f.d), fixed(right), sum, f.d_p, f.width, f.d, /*add=*/group > 0);
        if (const T* const given = f.bias(group, head); given != nullptr && dbias != nullptr) {
          f.k.pack(given, f.width, term, 1, f.width);
          f.k.multiply(f.left(dbias + row, 1), fixed(term), sum, f.d_p, f.width, 1, /*add=*/true);
        }
      }
      f.k.scale_rows(sum, factors, f.d_p, f.width);
      f.k.unpack(fixed(sum), nullptr, dz + (b * f.d_p * f.heads + head) * f.width, f.heads * f.width, f.d_p, f.width);
    }
  });
}

template <class T>
std::vector<Tensor> fold_backward_as(const FoldCall& call, const Tensor& drows_, const Tensor& dbias_) {
  const Fold<T> f(call);
  const auto drows = f.settled(drows_), dbias = f.settled(dbias_);
  const T* const of_rows = drows.template const_data_ptr<T>();
  const T* const of_bias = dbias.defined() ? dbias.template const_data_ptr<T>() : nullptr;
  const auto options = f.z.options();
  const auto dz = at::empty(call.z.sizes(), options);
  std::vector<Tensor> dweights, dbiases;
  for (size_t i = 0; i < call.weights.size(); ++i) {
    dweights.push_back(at::empty(call.weights[i].sizes(), options));
    dbiases.push_back(call.biases[i].defined() && dbias.defined() ? at::empty(call.biases[i].sizes(), options)
                                                                  : Tensor());
  }
  const auto of_sequence = drows.size(-2);
  differentiate_weights(f, of_rows, of_sequence, of_bias, dweights, dbiases);
  differentiate_slots(f, of_rows, of_sequence, of_bias, dz.template mutable_data_ptr<T>());
  std::vector<Tensor> result{dz.to(call.z.scalar_type())};
  for (size_t i = 0; i < call.weights.size(); ++i) {
    result.push_back(dweights[i].to(call.weights[i].scalar_type()));
  }
  for (size_t i = 0; i < call.biases.size(); ++i) {
    if (call.biases[i].defined()) {
      result.push_back(dbiases[i].defined() ? dbiases[i].to(call.biases[i].scalar_type())
                                            : at::zeros_like(call.biases[i]));
    }
  }
  return result;
}

std::tuple<Tensor, Tensor> fold_stack_operator(const Tensor& z, at::TensorList weights, const OptionalList& biases,
                                               const Optional& tail, const Optional& tail_bias, int64_t heads,
                                               double scale) {
  const SettledTypes settled;
  const FoldCall call(z, weights, biases, tail, tail_bias, heads, scale);
  if (!use_products("fold", call)) {
    return reference::fold(call);
  }
  return in_accumulation_type(call.type(), [&](auto zero) { return fold_as<decltype(zero)>(call); });
}

std::vector<Tensor> fold_stack_backward_operator(const Tensor& z, at::TensorList weights, const OptionalList& biases,
                                                 int64_t heads, double scale, const Optional& drows,
                                                 const Optional& dbias) {
  const SettledTypes settled;
  const FoldCall call(z, weights, biases, {}, {}, heads, scale);
  const auto of_rows = value_or_absent(drows), of_bias = value_or_absent(dbias);
  if (!of_rows.defined() || !use_products("fold_backward", call)) {
    return reference::fold_backward(call, of_rows, of_bias);
  }
  return in_accumulation_type(call.type(),
                              [&](auto zero) { return fold_backward_as<decltype(zero)>(call, of_rows, of_bias); });
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, CPU, m) {
  m.impl("fold_stack", fold_stack_operator);
  m.impl("fold_stack_backward", fold_stack_backward_operator);
}

}  // namespace dba::ops::cpu

#include "ops/fold.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "ops/cuda/core_call.h"
#include "ops/cuda/fold_rows.h"
#include "ops/fused.h"

namespace dba::ops::cuda {
namespace {

using at::Tensor;

/// The operands of a fold in one type, and where its rows lie.
struct FoldProducts {
  explicit FoldProducts(const FoldCall& call)
      : type(call.type()),
        z(typed(call.z)),
        batch(call.each() ? call.z.size(0) : 1),
        heads(call.heads),
        d_p(call.d_p()),
        width(call.z.size(-1) / call.heads),
        d(call.d()) {
    for (const auto& weight : call.weights) {
      weights.push_back(typed(weight));
    }
    for (const auto& bias : call.biases) {
      biases.push_back(bias.defined() ? typed(bias) : bias);
    }
  }

  at::ScalarType type;
  Tensor z;
  std::vector<Tensor> weights, biases;
  int64_t batch, heads, d_p, width, d;

  Tensor typed(const Tensor& tensor) const {
    return tensor.to(type).contiguous();
  }
  ProductList list() const {
    ProductList result;
    result.a = element_of(type);
    result.b = element_of(type);
    result.tf32 = type != at::kFloat || tf32_allowed();
    return result;
  }
  /// A product over the slots of all sequences, head by head.
  Product product(Orientation orientation, int64_t columns) const {
    Product result;
    result.orientation = orientation;
    result.parts = 1;
    result.heads = narrow(heads);
    result.rows = narrow(batch * d_p);
    result.columns = narrow(columns);
    result.wide_out = type == at::kFloat;
    return result;
  }
  HeadMatrix slots(const Tensor& of) const {
    return {of.const_data_ptr(), 0, heads * width, width, std::numeric_limits<int>::max()};
  }
  /// One group's part of rows (B, R, d), or of their bias (B, R) with numbers = 1.
  HeadMatrix group_rows(const Tensor& of, int64_t group, int64_t rows, int64_t numbers) const {
    const auto* first = static_cast<const char*>(of.const_data_ptr());
    return {first + group * heads * d_p * numbers * of.element_size(), rows * numbers, numbers, d_p * numbers,
            narrow(d_p)};
  }
};

std::string obstacle(const FoldCall& call, bool backward) {
  const auto type = call.type();
  if (type != at::kHalf && type != at::kBFloat16 && type != at::kFloat) {
    return std::string("rows must be float16, bfloat16 or float32, got ") + c10::toString(type);
  }
  const auto groups = call.weights.size();
  const bool biased =
      std::any_of(call.biases.begin(), call.biases.end(), [](const Tensor& bias) { return bias.defined(); });
  if (backward && (groups > 3 || (biased && groups > 1))) {
    return "gradients are fused for up to three weights, or one with a bias, got " + std::to_string(groups);
  }
  if (groups > static_cast<size_t>(kMostFolds)) {
    return "weights must be at most " + std::to_string(kMostFolds) + ", got " + std::to_string(groups);
  }
  if (!backward && (call.each() && call.z.size(0) > 65535)) {
    return "rows are folded for up to 65535 sequences at once, got " + std::to_string(call.z.size(0));
  }
  constexpr int64_t kWidestHead = 8192;
  if (!backward && call.z.size(-1) / call.heads > kWidestHead) {
    return "heads of z must be at most " + std::to_string(kWidestHead) + " wide, got " +
           std::to_string(call.z.size(-1) / call.heads);
  }
  const auto of_z = backward ? call.z.numel() : call.z.size(-2) * call.z.size(-1);
  const auto most = std::max({of_z, call.rows() * call.d(), call.z.size(-1) * call.d()});
  if (most > std::numeric_limits<int>::max() / 64) {
    return std::string(backward ? "z" : "z of a sequence") +
           ", its rows and a weight must each stay below 2²⁵ numbers, got " + std::to_string(most);
  }
  return {};
}

std::tuple<Tensor, Tensor> fold_stack_cuda(const Tensor& z, at::TensorList weights, const OptionalList& biases,
                                           const Optional& tail, const Optional& tail_bias, int64_t heads,
                                           double scale) {
  const SettledTypes settled;
  const FoldCall call(z, weights, biases, tail, tail_bias, heads, scale);
  const c10::cuda::CUDAGuard guard(z.device());
  if (!use_fused_on_gpu("fold", obstacle(call, /*backward=*/false))) {
    return reference::fold(call);
  }
  const FoldProducts products(call);
  const auto options = z.options().dtype(products.type);
  const auto all_rows = call.rows();
  const auto rows = call.each() ? at::empty({products.batch, all_rows, products.d}, options)
                                : at::empty({all_rows, products.d}, options);
  const auto bias = !call.has_bias() ? at::empty({0}, options)
                    : call.each()    ? at::empty({products.batch, all_rows}, options)
                                     : at::empty({all_rows}, options);
  // Rows of width 0 may still have a bias.
  if (rows.numel() == 0 && bias.numel() == 0) {
    return {rows, bias};
  }
  FoldRowsArguments given{};
  given.element = element_of(products.type);
  given.z = products.z.const_data_ptr();
  given.groups = narrow(static_cast<int64_t>(products.weights.size()));
  for (size_t i = 0; i < products.weights.size(); ++i) {
    given.weights[i] = products.weights[i].const_data_ptr();
    given.biases[i] = products.biases[i].defined() ? products.biases[i].const_data_ptr() : nullptr;
  }
  const auto tail_rows = call.tail.defined() ? products.typed(call.tail) : Tensor();
  const auto tail_values = call.tail_bias.defined() ? products.typed(call.tail_bias) : Tensor();
  if (tail_rows.defined()) {
    given.tail = tail_rows.const_data_ptr();
    given.tail_bias = tail_values.defined() ? tail_values.const_data_ptr() : nullptr;
    given.tail_rows = narrow(tail_rows.size(0));
  }
  given.batch = narrow(products.batch);
  given.heads = narrow(products.heads);
  given.d_p = narrow(products.d_p);
  given.width = narrow(products.width);
  given.d = narrow(products.d);
  given.scale = static_cast<float>(scale);
  given.rows = rows.mutable_data_ptr();
  given.bias = call.has_bias() ? bias.mutable_data_ptr() : nullptr;
  C10_CUDA_CHECK(fold_rows(given, c10::cuda::getCurrentCUDAStream()));
  return {rows, bias};
}

std::vector<Tensor> fold_stack_backward_cuda(const Tensor& z, at::TensorList weights, const OptionalList& biases,
                                             int64_t heads, double scale, const Optional& drows,
                                             const Optional& dbias) {
  const SettledTypes settled;
  const FoldCall call(z, weights, biases, {}, {}, heads, scale);
  const bool whole = drows.has_value() && drows->numel() > 0 && z.numel() > 0;
  const c10::cuda::CUDAGuard guard(z.device());
  if (!use_fused_on_gpu("fold_backward", obstacle(call, /*backward=*/true)) || !whole) {
    return reference::fold_backward(call, value_or_absent(drows), value_or_absent(dbias));
  }
  const FoldProducts products(call);
  const auto given = products.typed(*drows);
  const auto all_rows = given.size(-2);
  const auto given_bias = dbias.has_value() ? products.typed(*dbias) : Tensor();
  const bool biased = given_bias.defined() && std::any_of(products.biases.begin(), products.biases.end(),
                                                          [](const Tensor& bias) { return bias.defined(); });
  const auto wide_bias = biased ? given_bias.to(at::kFloat) : Tensor();

  auto list = products.list();
  std::vector<Tensor> result{at::empty_like(products.z)};
  std::vector<Tensor> dbiases;
  auto of_slots = products.product(Orientation::along_along, products.width);
  of_slots.parts = 0;
  of_slots.scale = static_cast<float>(scale);
  of_slots.out = products.slots(result.front());
  for (size_t i = 0; i < products.weights.size(); ++i) {
    const auto group = static_cast<int64_t>(i);
    const auto& weight = products.weights[i];
    const auto of_group = products.group_rows(given, group, all_rows, products.d);
    of_slots.part[of_slots.parts++] = {of_group, CoreCall::weight_rows(weight, products.width), narrow(products.d)};

    const auto over_slots = [&](const HeadMatrix& right, int64_t columns, const HeadMatrix& out) {
      auto product = products.product(Orientation::across_across, columns);
      product.part[0] = {products.slots(products.z), right, narrow(products.batch * products.d_p)};
      product.rows = narrow(products.width);
      product.scale = static_cast<float>(scale);
      product.out = out;
      append(list, product);
    };
    result.push_back(at::empty_like(weight));
    over_slots(of_group, products.d, CoreCall::weight_rows(result.back(), products.width));
    const auto& bias = products.biases[i];
    if (bias.defined() && given_bias.defined()) {
      of_slots.bias = bias.const_data_ptr();
      of_slots.sums = products.group_rows(wide_bias, group, all_rows, 1);
      dbiases.push_back(at::empty_like(bias));
      over_slots(products.group_rows(given_bias, group, all_rows, 1), 1,
                 CoreCall::vector(dbiases.back(), products.width));
    } else if (bias.defined()) {
      dbiases.push_back(at::zeros_like(bias));
    }
  }
  append(list, of_slots);
  run(list, z);

  result.front() = result.front().to(z.scalar_type());
  for (size_t i = 0; i < weights.size(); ++i) {
    result[i + 1] = result[i + 1].to(weights[i].scalar_type());
  }
  size_t next = 0;
  for (const auto& bias : call.biases) {
    if (bias.defined()) {
      result.push_back(dbiases[next++].to(bias.scalar_type()));
    }
  }
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, CUDA, m) {
  m.impl("fold_stack", fold_stack_cuda);
  m.impl("fold_stack_backward", fold_stack_backward_cuda);
}

}  // namespace dba::ops::cuda

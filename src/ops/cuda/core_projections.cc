#include "ops/cuda/core_projections.h"

namespace dba::ops::cuda {

CoreAttendArguments attend_arguments(const CoreCall& call, const at::Tensor& q, const at::Tensor& k,
                                     const at::Tensor& v, const at::Tensor& normed) {
  CoreAttendArguments given{};
  given.element = call.element();
  given.batch = narrow(call.batch);
  given.heads = narrow(call.heads);
  given.d_p = narrow(call.d_p);
  given.q = q.const_data_ptr<float>();
  given.k = k.const_data_ptr<float>();
  given.v = v.const_data_ptr<float>();
  given.e = narrow(call.e);
  given.value_width = narrow(call.value_width);
  if (call.released) {
    given.norm_weight = call.w.norm_weight.const_data_ptr();
    given.norm_bias = call.w.norm_bias.const_data_ptr();
  }
  given.dropout = call.dropout();
  given.normed = normed.mutable_data_ptr<float>();
  return given;
}

void append_paper_projections(ProductList& list, const CoreCall& call, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v) {
  const auto& w = call.w;
  append(list, call.lift(0, w.query_weight, w.query_bias, q));
  if (call.cross) {
    append(list, call.project(call.other, w.key_weight, w.key_bias, k));
    append(list, call.project(call.other, w.value_weight, w.value_bias, v));
  } else {
    append(list, call.lift(1, w.key_weight, w.key_bias, k));
    append(list, call.lift(2, w.value_weight, w.value_bias, v));
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> project_released(const CoreCall& call, const at::Tensor& compressed,
                                                                const std::optional<Product>& beside) {
  const auto& w = call.w;
  const auto q = call.joined(call.query_width);
  const auto k = call.joined(call.query_width);
  const auto v = call.joined(call.value_width);
  const auto keys_and_values = [&](ProductList& list, const at::Tensor& source) {
    append(list, call.project(source, w.key_weight, w.key_bias, k));
    append(list, call.project(source, w.value_weight, w.value_bias, v));
  };
  auto first = call.list();
  append(first, call.lift(0, w.compress_weight, w.compress_bias, compressed));
  if (beside.has_value()) {
    append(first, *beside);
  }
  if (call.cross) {
    keys_and_values(first, call.other);
  }
  run(first, call.c);
  auto second = call.list();
  append(second, call.project(compressed, w.query_weight, w.query_bias, q));
  if (!call.cross) {
    keys_and_values(second, compressed);
  }
  run(second, call.c);
  return {q, k, v};
}

}  // namespace dba::ops::cuda

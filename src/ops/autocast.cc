#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "ops/signatures.h"

/// Under autocast the tokens are cast, and what is multiplied with weights: the slots that are folded and the weights
/// of the small middle, whose products would otherwise be those of float32, which no tensor core takes. Score rows,
/// biases and M of a call of compress or restore keep their type: the kernels round them where they read them.
namespace dba::ops {
namespace {

using at::Tensor;

template <c10::DeviceType device>
Tensor narrowed(const Tensor& x) {
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), x, device);
}

template <c10::DeviceType device>
Optional narrowed(const Optional& x) {
  return x.has_value() ? Optional(narrowed<device>(*x)) : x;
}

template <c10::DeviceType device>
OptionalList narrowed(const OptionalList& list) {
  OptionalList result;
  for (const std::optional<Tensor> tensor : list) {
    result.push_back(narrowed<device>(tensor));
  }
  return result;
}

template <c10::DeviceType device>
std::tuple<Tensor, Tensor> fold_autocast(const Tensor& z, const Tensor& weight, const Optional& bias, int64_t heads,
                                         double scale) {
  const SettledTypes settled;
  static const auto op = typed_operator<signature::Fold>("dba::fold");
  return op.call(narrowed<device>(z), narrowed<device>(weight), narrowed<device>(bias), heads, scale);
}

template <c10::DeviceType device>
std::tuple<Tensor, Tensor> fold_stack_autocast(const Tensor& z, at::TensorList weights, const OptionalList& biases,
                                               const Optional& tail, const Optional& tail_bias, int64_t heads,
                                               double scale) {
  const SettledTypes settled;
  std::vector<Tensor> narrow_weights;
  for (const auto& weight : weights) {
    narrow_weights.push_back(narrowed<device>(weight));
  }
  static const auto op = typed_operator<signature::FoldStack>("dba::fold_stack");
  return op.call(narrowed<device>(z), narrow_weights, narrowed<device>(biases), narrowed<device>(tail),
                 narrowed<device>(tail_bias), heads, scale);
}

template <c10::DeviceType device>
std::tuple<Tensor, Tensor, Tensor> compress_autocast(const Tensor& x, const Tensor& begin, const Tensor& end,
                                                     const Optional& each, const Optional& each_bias,
                                                     const Optional& shared, const Optional& shared_bias,
                                                     int64_t linear, double p, const Optional& rng) {
  const SettledTypes settled;
  static const auto op = typed_operator<signature::Compress>("dba::compress");
  return op.call(narrowed<device>(x), begin, end, each, each_bias, shared, shared_bias, linear, p, rng);
}

template <c10::DeviceType device>
Tensor restore_autocast(const Tensor& x, const Tensor& begin, const Tensor& end, const Tensor& rows,
                        const Optional& bias, const Tensor& m, const Optional& out_bias, int64_t heads, bool linear,
                        double p, const Optional& rng) {
  const SettledTypes settled;
  static const auto op = typed_operator<signature::Restore>("dba::restore");
  return op.call(narrowed<device>(x), begin, end, rows, bias, m, out_bias, heads, linear, p, rng);
}

template <c10::DeviceType device>
std::tuple<Tensor, Tensor> attention_autocast(const Tensor& x, const Tensor& begin, const Tensor& end,
                                              const Optional& each, const Optional& each_bias, const Optional& shared,
                                              const Optional& shared_bias, int64_t linear_rows,
                                              const OptionalList& weights, const Tensor& restore_rows,
                                              const Optional& restore_bias, const Optional& out_bias, int64_t heads,
                                              bool linear, double p, const Optional& rng) {
  const SettledTypes settled;
  static const auto op = typed_operator<signature::Attention>("dba::attention");
  return op.call(narrowed<device>(x), begin, end, each, each_bias, shared, shared_bias, linear_rows,
                 narrowed<device>(weights), restore_rows, restore_bias, out_bias, heads, linear, p, rng);
}

template <c10::DeviceType device>
void register_autocast(torch::Library& m) {
  m.impl("fold", fold_autocast<device>);
  m.impl("fold_stack", fold_stack_autocast<device>);
  m.impl("compress", compress_autocast<device>);
  m.impl("restore", restore_autocast<device>);
  m.impl("attention", attention_autocast<device>);
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, AutocastCPU, m) {
  register_autocast<c10::DeviceType::CPU>(m);
}

TORCH_LIBRARY_IMPL(dba, AutocastCUDA, m) {
  register_autocast<c10::DeviceType::CUDA>(m);
}

}  // namespace dba::ops

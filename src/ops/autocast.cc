#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "ops/signatures.h"

/// Under autocast the tokens are cast; the small operands keep their type, because sums are accumulated in float32
/// anyway.
namespace dba::ops {
namespace {

using at::Tensor;

template <c10::DeviceType device>
Tensor cast_tokens(const Tensor& x) {
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), x, device);
}

template <c10::DeviceType device>
std::tuple<Tensor, Tensor, Tensor> compress_autocast(const Tensor& x, const Tensor& begin, const Tensor& end,
                                                     const Optional& each, const Optional& each_bias,
                                                     const Optional& shared, const Optional& shared_bias,
                                                     int64_t linear, double p, const Optional& rng) {
  const SettledTypes settled;
  static const auto op = typed_operator<signature::Compress>("dba::compress");
  return op.call(cast_tokens<device>(x), begin, end, each, each_bias, shared, shared_bias, linear, p, rng);
}

template <c10::DeviceType device>
Tensor restore_autocast(const Tensor& x, const Tensor& begin, const Tensor& end, const Tensor& rows,
                        const Optional& bias, const Tensor& m, const Optional& out_bias, int64_t heads, bool linear,
                        double p, const Optional& rng) {
  const SettledTypes settled;
  static const auto op = typed_operator<signature::Restore>("dba::restore");
  return op.call(cast_tokens<device>(x), begin, end, rows, bias, m, out_bias, heads, linear, p, rng);
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
  return op.call(cast_tokens<device>(x), begin, end, each, each_bias, shared, shared_bias, linear_rows, weights,
                 restore_rows, restore_bias, out_bias, heads, linear, p, rng);
}

template <c10::DeviceType device>
void register_autocast(torch::Library& m) {
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

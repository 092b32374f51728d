#include "ops/cpu/activate_rows.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "ops/cpu/scratch.h"

namespace dba::ops::cpu {
namespace {

using at::Tensor;

/// The bias, or zeros, padded to whole panels.
float* padded_bias(const Tensor& bias, int64_t d, Scratch& scratch) {
  float* const padded = scratch.zeros<float>(padded_columns(kernels<float>(), d));
  if (bias.defined()) {
    const auto wide = bias.to(at::kFloat).contiguous();
    std::copy_n(wide.const_data_ptr<float>(), d, padded);
  }
  return padded;
}

const uint16_t* bits_of(const Tensor& tensor) {
  return reinterpret_cast<const uint16_t*>(tensor.const_data_ptr<at::BFloat16>());
}

}  // namespace

void forward_by_rows(const ActivateCall& call, const at::Tensor& y) {
  const auto d = call.hidden.size(1);
  const auto hidden = call.hidden.contiguous();
  Scratch scratch;
  const float* const bias = padded_bias(call.bias, d, scratch);
  const auto* const from = bits_of(hidden);
  auto* const to = reinterpret_cast<uint16_t*>(y.mutable_data_ptr<at::BFloat16>());
  at::parallel_for(0, call.hidden.size(0), kRowsPerChunk, [&](int64_t first, int64_t last) {
    kernels<float>().activate_bfloat16(from + first * d, bias, to + first * d, last - first, d,
                                       call.kind == ActivationKind::gelu);
  });
}

at::Tensor backward_by_rows(const ActivateCall& call, const at::Tensor& dy, const at::Tensor& dhidden) {
  const auto& k = kernels<float>();
  const auto rows = call.hidden.size(0);
  const auto d = call.hidden.size(1);
  const auto hidden = call.hidden.contiguous();
  const auto above = dy.contiguous();
  const auto chunks = (rows + kRowsPerChunk - 1) / kRowsPerChunk;
  const auto stride = padded_columns(k, d);
  Scratch scratch;
  const float* const bias = padded_bias(call.bias, d, scratch);
  float* const partials = scratch.zeros<float>(chunks * stride);
  const auto *const from = bits_of(hidden), *const gradient = bits_of(above);
  auto* const to = reinterpret_cast<uint16_t*>(dhidden.mutable_data_ptr<at::BFloat16>());
  at::parallel_for(0, chunks, 1, [&](int64_t first_chunk, int64_t last_chunk) {
    for (auto chunk = first_chunk; chunk < last_chunk; ++chunk) {
      const auto row = chunk * kRowsPerChunk;
      k.differentiate_bfloat16(from + row * d, bias, gradient + row * d, to + row * d, partials + chunk * stride,
                               std::min(kRowsPerChunk, rows - row), d, call.kind == ActivationKind::gelu);
    }
  });
  return total_of_chunks(partials, chunks, stride, d);
}

}  // namespace dba::ops::cpu

#pragma once

#include <ATen/ATen.h>

/// The few steps that the plain transcriptions share.
namespace dba::test {

/// x Wᵀ + b, the weight (out, in) as in torch::nn::Linear, the bias optional.
inline at::Tensor affine(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor y = x.matmul(weight.t());
  return bias.defined() ? y + bias : y;
}

/// The columns of one head.
inline at::Tensor head_columns(const at::Tensor& x, int64_t head, int64_t width) {
  return x.slice(1, head * width, (head + 1) * width);
}

/// Weights of one head after dropout; mask (H, …), absent where nothing is dropped.
inline at::Tensor dropped(const at::Tensor& weights, const at::Tensor& mask, int64_t head) {
  return mask.defined() ? weights * mask[head] : weights;
}

}  // namespace dba::test

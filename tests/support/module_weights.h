#pragma once

#include "dba/nn/dba_attention.h"
#include "dba/nn/dba_cross_attention.h"
#include "support/comparison.h"
#include "support/masks.h"
#include "support/paper_transcription.h"
#include "support/released_transcription.h"

/// The parameters of the modules and the masks of their dropout, under the names of the transcriptions.
namespace dba::test {

inline at::Tensor weight_of(const torch::nn::Linear& linear) {
  return linear.is_empty() ? at::Tensor() : linear->weight;
}

inline at::Tensor bias_of(const torch::nn::Linear& linear) {
  return linear.is_empty() ? at::Tensor() : linear->bias;
}

inline PaperWeights paper_weights(const DBAttentionImpl& module) {
  return {weight_of(module.w_q), bias_of(module.w_q),   weight_of(module.w_k),
          bias_of(module.w_k),   weight_of(module.w_v), bias_of(module.w_v),
          weight_of(module.w_o), bias_of(module.w_o),   module.r,
          weight_of(module.f_c), bias_of(module.f_c),   weight_of(module.f_r),
          bias_of(module.f_r),   at::Tensor(),          at::Tensor()};
}

inline PaperWeights paper_weights(const DBACrossAttentionImpl& module) {
  return {weight_of(module.w_q), bias_of(module.w_q),   weight_of(module.w_k),
          bias_of(module.w_k),   weight_of(module.w_v), bias_of(module.w_v),
          weight_of(module.w_o), bias_of(module.w_o),   module.r,
          at::Tensor(),          at::Tensor(),          weight_of(module.f_r),
          bias_of(module.f_r),   weight_of(module.w_z), bias_of(module.w_z)};
}

/// DBAttention and DBACrossAttention name the parameters of form `released` alike.
template <typename Module>
ReleasedWeights released_weights(const Module& module) {
  return {module.p_q->weight, module.p_q->bias,   module.p_k->weight, module.p_k->bias,   module.p_v->weight,
          module.p_v->bias,   module.w_q->weight, module.w_q->bias,   module.w_k->weight, module.w_k->bias,
          module.w_v->weight, module.w_v->bias,   module.w_o->weight, module.w_o->bias,   module.norm->weight,
          module.norm->bias,  module.w_u->weight, module.w_u->bias};
}

inline PaperMasks paper_masks(const ops::Dropout& dropout, int64_t b, int64_t n, int64_t heads, int64_t d_p) {
  const LayerMasks masks = layer_masks(dropout, b, n, heads, d_p, 3);
  const at::Tensor& w_c_prime = masks.compress[2];
  return {masks.compress[0], masks.compress[1], masks.core, w_c_prime.defined() ? w_c_prime.transpose(1, 2) : w_c_prime,
          masks.restore};
}

inline PaperMasks paper_cross_masks(const ops::Dropout& dropout, int64_t b, int64_t n, int64_t heads, int64_t d_p) {
  const LayerMasks masks = layer_masks(dropout, b, n, heads, d_p, 1);
  PaperMasks named;
  named.w_r = masks.compress[0];
  named.p = masks.core;
  named.w_r_prime = masks.restore;
  return named;
}

inline ReleasedMasks released_masks(const ops::Dropout& dropout, int64_t b, int64_t n, int64_t heads, int64_t d_p) {
  const LayerMasks masks = layer_masks(dropout, b, n, heads, d_p, 1);
  return {masks.compress[0], masks.core, masks.restore};
}

/// Weights of one sequence (H, …) inside the padded ones of a batch: equal where the sequence is, zero outside.
inline void expect_weights(const at::Tensor& padded, const at::Tensor& expected, const std::string& name) {
  ASSERT_TRUE(padded.defined()) << name;
  at::Tensor framed = at::zeros(padded.sizes(), at::kDouble);
  framed.slice(1, 0, expected.size(1)).slice(2, 0, expected.size(2)).copy_(expected.detach());
  EXPECT_TRUE(close(padded, framed)) << name;
}

}  // namespace dba::test

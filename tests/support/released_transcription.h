#pragma once

#include <ATen/ATen.h>

/// The authors' released attention, one sequence and one head at a time, in plain ATen. It knows nothing of the
/// library: it is what the library is compared with. Linear layers as in torch::nn::Linear (weight (out, in)).
namespace dba::test {

struct ReleasedWeights {
  at::Tensor p_q, p_q_bias, p_k, p_k_bias;  ///< (H·e, d), (H·e)
  at::Tensor p_v, p_v_bias;                 ///< (d, d), (d)
  at::Tensor w_q, b_q, w_k, b_k;            ///< (H·e, d), (H·e)
  at::Tensor w_v, b_v, w_o, b_o;            ///< (d, d), (d)
  at::Tensor norm, norm_bias;               ///< (d) the LayerNorm of O
  at::Tensor w_u, b_u;                      ///< (H·d_p, d), (H·d_p)
};

/// Dropout masks over their keep rate; absent ones drop nothing.
struct ReleasedMasks {
  at::Tensor a;  ///< (H, d_p, n)
  at::Tensor s;  ///< (H, d_p, d_p)
  at::Tensor u;  ///< (H, n, d_p)
};

struct ReleasedResult {
  at::Tensor y;  ///< (n, d)
  at::Tensor c;  ///< (d_p, d), the next layer's Z
  at::Tensor a;  ///< (H, d_p, n) before dropout
  at::Tensor s;  ///< (H, d_p, d_p) before dropout
  at::Tensor u;  ///< (H, n, d_p) before dropout
};

/// (v − mean)/√(variance + 1e-5) · weight + bias over the last dimension.
at::Tensor layer_norm_as_defined(const at::Tensor& v, const at::Tensor& weight, const at::Tensor& bias);

/// Self-attention of one sequence: x (n, d), z (d_p, d).
ReleasedResult released_attention(const at::Tensor& x, const at::Tensor& z, const ReleasedWeights& weights,
                                  int64_t heads, const ReleasedMasks& masks = {});

/// C = concat_h( softmax over tokens((Z P_q)_h (X P_k)_hᵀ/√e) (X P_v)_h ).
at::Tensor released_compressor(const at::Tensor& x, const at::Tensor& z, const ReleasedWeights& weights, int64_t heads,
                               const at::Tensor& mask = {});

/// Cross-attention: A and C from x_1 with c_2 (d_p, d) as the slots, queries from C, keys and values from c_2.
ReleasedResult released_cross_attention(const at::Tensor& x_1, const at::Tensor& c_2, const ReleasedWeights& weights,
                                        int64_t heads, const ReleasedMasks& masks = {});

}  // namespace dba::test

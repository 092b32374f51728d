#pragma once

#include <ATen/ATen.h>

/// The paper's equations, read per head, one sequence and one head at a time, in plain ATen. It knows nothing of the
/// library: it is what the library is compared with. Linear layers as in torch::nn::Linear (weight (out, in)).
namespace dba::test {

struct PaperWeights {
  at::Tensor w_q, b_q, w_k, b_k, w_v, b_v, w_o, b_o;  ///< (d, d), (d)
  at::Tensor r;                                       ///< (H, d_h, e); absent: R = I
  at::Tensor f_c, f_c_bias, f_r, f_r_bias;            ///< (H·d_p, d), (H·d_p)
  at::Tensor w_z, b_z;                                ///< (d, d), (d): cross-attention only
};

/// Dropout masks over their keep rate; absent ones drop nothing.
struct PaperMasks {
  at::Tensor w_r, w_c;              ///< (H, d_p, n)
  at::Tensor p;                     ///< (H, d_p, d_p)
  at::Tensor w_c_prime, w_r_prime;  ///< (H, n, d_p)
};

struct PaperResult {
  at::Tensor y;                     ///< (n, d)
  at::Tensor c;                     ///< (d_p, d)
  at::Tensor w_r, w_c;              ///< (H, d_p, n) before dropout
  at::Tensor p;                     ///< (H, d_p, d_p), or (H, n, n) without length compression
  at::Tensor w_c_prime, w_r_prime;  ///< (H, n, d_p) before dropout
};

/// Self-attention of one sequence: x (n, d), z (d_p, d). `linear`: W_r' and W_c' as printed, the latter over n.
PaperResult paper_attention(const at::Tensor& x, const at::Tensor& z, const PaperWeights& weights, int64_t heads,
                            bool linear, const PaperMasks& masks = {});

/// The ablation without length compression: the n × n map over Q R and K R.
PaperResult paper_attention_full_length(const at::Tensor& x, const PaperWeights& weights, int64_t heads);

/// C = concat_h( softmax over tokens(Z_h Q_hᵀ/√d_h) Q_h ): the compressor in front of cross-attention.
at::Tensor paper_compressor(const at::Tensor& x, const at::Tensor& z, const at::Tensor& w_q, const at::Tensor& b_q,
                            int64_t heads, const at::Tensor& mask = {});

/// Cross-attention: x_1 (n, d) asks the stream whose compressed sequence is c_2 (d_p, d).
PaperResult paper_cross_attention(const at::Tensor& x_1, const at::Tensor& c_2, const PaperWeights& weights,
                                  int64_t heads, bool linear, const PaperMasks& masks = {});

}  // namespace dba::test

#include "support/released_transcription.h"

#include <cmath>
#include <vector>

#include "support/per_head.h"

namespace dba::test {
namespace {

struct Compressed {
  at::Tensor c;  ///< (d_p, d)
  at::Tensor a;  ///< (H, d_p, n)
};

Compressed compressed_sequence(const at::Tensor& x, const at::Tensor& z, const ReleasedWeights& weights, int64_t heads,
                               const at::Tensor& mask) {
  const int64_t g = x.size(1) / heads;
  const int64_t e = weights.p_q.size(0) / heads;
  const at::Tensor z_q = affine(z, weights.p_q, weights.p_q_bias);
  const at::Tensor x_k = affine(x, weights.p_k, weights.p_k_bias);
  const at::Tensor x_v = affine(x, weights.p_v, weights.p_v_bias);
  std::vector<at::Tensor> c, all_a;
  for (int64_t h = 0; h < heads; ++h) {
    const at::Tensor scores = head_columns(z_q, h, e).matmul(head_columns(x_k, h, e).t());
    const at::Tensor a = at::softmax(scores / std::sqrt(static_cast<double>(e)), 1);
    c.push_back(dropped(a, mask, h).matmul(head_columns(x_v, h, g)));
    all_a.push_back(a);
  }
  return {at::cat(c, 1), at::stack(all_a)};
}

/// `source`: where keys and values come from, C itself in self-attention.
ReleasedResult attend(const at::Tensor& x, const Compressed& compressed, const at::Tensor& source,
                      const ReleasedWeights& weights, int64_t heads, const ReleasedMasks& masks) {
  const int64_t g = x.size(1) / heads;
  const int64_t e = weights.w_q.size(0) / heads;
  const int64_t d_p = source.size(0);
  const at::Tensor q = affine(compressed.c, weights.w_q, weights.b_q) / std::sqrt(static_cast<double>(e));
  const at::Tensor k = affine(source, weights.w_k, weights.b_k);
  const at::Tensor v = affine(source, weights.w_v, weights.b_v);
  std::vector<at::Tensor> o_heads, y, all_s, all_u;
  for (int64_t h = 0; h < heads; ++h) {
    const at::Tensor s = at::softmax(head_columns(q, h, e).matmul(head_columns(k, h, e).t()), 1);
    o_heads.push_back(dropped(s, masks.s, h).matmul(head_columns(v, h, g)));
    all_s.push_back(s);
  }
  const at::Tensor o = layer_norm_as_defined(at::cat(o_heads, 1), weights.norm, weights.norm_bias);
  const at::Tensor scores = affine(x, weights.w_u, weights.b_u);
  for (int64_t h = 0; h < heads; ++h) {
    const at::Tensor u = at::softmax(head_columns(scores, h, d_p), 1);
    y.push_back(dropped(u, masks.u, h).matmul(head_columns(o, h, g)));
    all_u.push_back(u);
  }
  return {affine(at::cat(y, 1), weights.w_o, weights.b_o), compressed.c, compressed.a, at::stack(all_s),
          at::stack(all_u)};
}

}  // namespace

at::Tensor layer_norm_as_defined(const at::Tensor& v, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor centred = v - v.mean(-1, /*keepdim=*/true);
  const at::Tensor variance = centred.square().mean(-1, /*keepdim=*/true);
  const at::Tensor scaled = centred / (variance + 1e-5).sqrt() * weight;
  return bias.defined() ? scaled + bias : scaled;
}

ReleasedResult released_attention(const at::Tensor& x, const at::Tensor& z, const ReleasedWeights& weights,
                                  int64_t heads, const ReleasedMasks& masks) {
  const Compressed compressed = compressed_sequence(x, z, weights, heads, masks.a);
  return attend(x, compressed, compressed.c, weights, heads, masks);
}

at::Tensor released_compressor(const at::Tensor& x, const at::Tensor& z, const ReleasedWeights& weights, int64_t heads,
                               const at::Tensor& mask) {
  return compressed_sequence(x, z, weights, heads, mask).c;
}

ReleasedResult released_cross_attention(const at::Tensor& x_1, const at::Tensor& c_2, const ReleasedWeights& weights,
                                        int64_t heads, const ReleasedMasks& masks) {
  const Compressed compressed = compressed_sequence(x_1, c_2, weights, heads, masks.a);
  return attend(x_1, compressed, c_2, weights, heads, masks);
}

}  // namespace dba::test

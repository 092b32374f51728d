#include "support/paper_transcription.h"

#include <cmath>
#include <vector>

#include "support/per_head.h"

namespace dba::test {
namespace {

at::Tensor compressed_width(const at::Tensor& x, const at::Tensor& r, int64_t head) {
  return r.defined() ? x.matmul(r[head]) : x;
}

}  // namespace

PaperResult paper_attention(const at::Tensor& x, const at::Tensor& z, const PaperWeights& weights, int64_t heads,
                            bool linear, const PaperMasks& masks) {
  const int64_t n = x.size(0);
  const int64_t d_h = x.size(1) / heads;
  const int64_t d_p = z.size(0);
  const double e = weights.r.defined() ? static_cast<double>(weights.r.size(2)) : static_cast<double>(d_h);
  const at::Tensor q = affine(x, weights.w_q, weights.b_q);
  const at::Tensor k = affine(x, weights.w_k, weights.b_k);
  const at::Tensor v = affine(x, weights.w_v, weights.b_v);
  std::vector<at::Tensor> y, c, all_w_r, all_w_c, all_p, all_w_c_prime, all_w_r_prime;
  for (int64_t h = 0; h < heads; ++h) {
    const at::Tensor q_h = head_columns(q, h, d_h);
    const at::Tensor k_h = head_columns(k, h, d_h);
    const at::Tensor v_h = head_columns(v, h, d_h);
    const at::Tensor z_h = head_columns(z, h, d_h);
    const at::Tensor w_r = at::softmax(z_h.matmul(q_h.t()) / std::sqrt(static_cast<double>(d_h)), 1);
    const at::Tensor w_c = at::softmax(z_h.matmul(k_h.t()) / std::sqrt(static_cast<double>(d_h)), 1);
    const at::Tensor q_l = dropped(w_r, masks.w_r, h).matmul(q_h);
    const at::Tensor k_l = dropped(w_c, masks.w_c, h).matmul(k_h);
    const at::Tensor q_dba = compressed_width(q_l, weights.r, h);
    const at::Tensor k_dba = compressed_width(k_l, weights.r, h);
    const at::Tensor p = at::softmax(q_dba.matmul(k_dba.t()) / std::sqrt(e), 1);
    const at::Tensor to_columns = head_columns(affine(x, weights.f_c, weights.f_c_bias), h, d_p);
    const at::Tensor to_rows = head_columns(affine(x, weights.f_r, weights.f_r_bias), h, d_p);
    const at::Tensor w_c_prime = linear ? to_columns / static_cast<double>(n) : at::softmax(to_columns, 0);
    const at::Tensor w_r_prime = linear ? to_rows : at::softmax(to_rows, 1);
    const at::Tensor v_dba = dropped(w_c_prime, masks.w_c_prime, h).t().matmul(v_h);
    y.push_back(dropped(w_r_prime, masks.w_r_prime, h).matmul(dropped(p, masks.p, h).matmul(v_dba)));
    c.push_back(q_l);
    all_w_r.push_back(w_r);
    all_w_c.push_back(w_c);
    all_p.push_back(p);
    all_w_c_prime.push_back(w_c_prime);
    all_w_r_prime.push_back(w_r_prime);
  }
  return {affine(at::cat(y, 1), weights.w_o, weights.b_o),
          at::cat(c, 1),
          at::stack(all_w_r),
          at::stack(all_w_c),
          at::stack(all_p),
          at::stack(all_w_c_prime),
          at::stack(all_w_r_prime)};
}

PaperResult paper_attention_full_length(const at::Tensor& x, const PaperWeights& weights, int64_t heads) {
  const int64_t d_h = x.size(1) / heads;
  const double e = weights.r.defined() ? static_cast<double>(weights.r.size(2)) : static_cast<double>(d_h);
  const at::Tensor q = affine(x, weights.w_q, weights.b_q);
  const at::Tensor k = affine(x, weights.w_k, weights.b_k);
  const at::Tensor v = affine(x, weights.w_v, weights.b_v);
  std::vector<at::Tensor> y, all_p;
  for (int64_t h = 0; h < heads; ++h) {
    const at::Tensor q_in = compressed_width(head_columns(q, h, d_h), weights.r, h);
    const at::Tensor k_in = compressed_width(head_columns(k, h, d_h), weights.r, h);
    const at::Tensor p = at::softmax(q_in.matmul(k_in.t()) / std::sqrt(e), 1);
    y.push_back(p.matmul(head_columns(v, h, d_h)));
    all_p.push_back(p);
  }
  PaperResult result;
  result.y = affine(at::cat(y, 1), weights.w_o, weights.b_o);
  result.p = at::stack(all_p);
  return result;
}

at::Tensor paper_compressor(const at::Tensor& x, const at::Tensor& z, const at::Tensor& w_q, const at::Tensor& b_q,
                            int64_t heads, const at::Tensor& mask) {
  const int64_t d_h = x.size(1) / heads;
  const at::Tensor q = affine(x, w_q, b_q);
  std::vector<at::Tensor> c;
  for (int64_t h = 0; h < heads; ++h) {
    const at::Tensor q_h = head_columns(q, h, d_h);
    const at::Tensor w_r =
        at::softmax(head_columns(z, h, d_h).matmul(q_h.t()) / std::sqrt(static_cast<double>(d_h)), 1);
    c.push_back(dropped(w_r, mask, h).matmul(q_h));
  }
  return at::cat(c, 1);
}

PaperResult paper_cross_attention(const at::Tensor& x_1, const at::Tensor& c_2, const PaperWeights& weights,
                                  int64_t heads, bool linear, const PaperMasks& masks) {
  const int64_t d_h = x_1.size(1) / heads;
  const int64_t d_p = c_2.size(0);
  const double e = weights.r.defined() ? static_cast<double>(weights.r.size(2)) : static_cast<double>(d_h);
  const at::Tensor z_1 = affine(c_2, weights.w_z, weights.b_z);
  const at::Tensor q_1 = affine(x_1, weights.w_q, weights.b_q);
  const at::Tensor k_2 = affine(c_2, weights.w_k, weights.b_k);
  const at::Tensor v_2 = affine(c_2, weights.w_v, weights.b_v);
  std::vector<at::Tensor> y, c, all_w_r, all_p, all_w_r_prime;
  for (int64_t h = 0; h < heads; ++h) {
    const at::Tensor q_h = head_columns(q_1, h, d_h);
    const at::Tensor w_r =
        at::softmax(head_columns(z_1, h, d_h).matmul(q_h.t()) / std::sqrt(static_cast<double>(d_h)), 1);
    const at::Tensor c_1 = dropped(w_r, masks.w_r, h).matmul(q_h);
    const at::Tensor q_dba = compressed_width(c_1, weights.r, h);
    const at::Tensor k_dba = compressed_width(head_columns(k_2, h, d_h), weights.r, h);
    const at::Tensor p = at::softmax(q_dba.matmul(k_dba.t()) / std::sqrt(e), 1);
    const at::Tensor to_rows = head_columns(affine(x_1, weights.f_r, weights.f_r_bias), h, d_p);
    const at::Tensor w_r_prime = linear ? to_rows : at::softmax(to_rows, 1);
    const at::Tensor mixed = dropped(p, masks.p, h).matmul(head_columns(v_2, h, d_h));
    y.push_back(dropped(w_r_prime, masks.w_r_prime, h).matmul(mixed));
    c.push_back(c_1);
    all_w_r.push_back(w_r);
    all_p.push_back(p);
    all_w_r_prime.push_back(w_r_prime);
  }
  PaperResult result;
  result.y = affine(at::cat(y, 1), weights.w_o, weights.b_o);
  result.c = at::cat(c, 1);
  result.w_r = at::stack(all_w_r);
  result.p = at::stack(all_p);
  result.w_r_prime = at::stack(all_w_r_prime);
  return result;
}

}  // namespace dba::test

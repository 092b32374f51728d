#include "support/plain_operators.h"

#include <cmath>

#include "support/per_head.h"
#include "support/released_transcription.h"

namespace dba::test {
namespace {

/// The projection of weighted sums of tokens c (rows, d) whose weights sum to r (rows).
at::Tensor project_sum(const at::Tensor& c, const at::Tensor& r, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor y = c.matmul(weight.t());
  return bias.defined() ? y + r.unsqueeze(1) * bias.unsqueeze(0) : y;
}

at::Tensor rows_of_head(const at::Tensor& t, int64_t head, int64_t height) {
  return t.slice(0, head * height, (head + 1) * height);
}

at::Tensor optional_rows_of_head(const at::Tensor& t, int64_t head, int64_t height) {
  return t.defined() ? rows_of_head(t, head, height) : t;
}

}  // namespace

ops::Summary plain_compress(const at::Tensor& x, const PackedBatch& batch, const ops::ScoreRows& rows,
                            const ops::Dropout& dropout) {
  std::vector<at::Tensor> c, r, lse;
  for (int64_t b = 0; b < batch.count(); ++b) {
    const at::Tensor tokens = batch.rows_of(x, b);
    const int64_t n = tokens.size(0);
    std::vector<at::Tensor> scores;
    if (rows.each.defined())
      scores.push_back(affine(tokens, rows.each[b], of_sequence(rows.each_bias, b, 1)));
    if (rows.shared.defined())
      scores.push_back(affine(tokens, rows.shared, rows.shared_bias));
    const at::Tensor s = at::cat(scores, 1);  // (n, L)
    const int64_t softmax_rows = s.size(1) - rows.linear;
    const at::Tensor steep = s.slice(1, 0, softmax_rows);
    const at::Tensor flat = s.slice(1, softmax_rows);
    at::Tensor w = at::cat({at::softmax(steep, 0), flat / static_cast<double>(n)}, 1);
    if (dropout.p > 0)
      w = w * ops::dropout_mask(dropout, ops::kSiteCompress, at::tensor({b}, at::kLong), at::zeros({1}, at::kLong), n,
                                s.size(1), at::kDouble)[0];
    c.push_back(w.t().matmul(tokens));
    r.push_back(w.sum(0));
    const at::Tensor log_n = at::full({rows.linear}, std::log(static_cast<double>(n)), at::kDouble);
    lse.push_back(at::cat({n > 0 ? at::logsumexp(steep, 0) : at::full({softmax_rows}, -INFINITY, at::kDouble), log_n}));
  }
  return {at::stack(c), at::stack(r), at::stack(lse)};
}

at::Tensor plain_restore(const at::Tensor& x, const PackedBatch& batch, const at::Tensor& rows, const at::Tensor& bias,
                         const at::Tensor& m, const at::Tensor& out_bias, int64_t heads, bool linear,
                         const ops::Dropout& dropout) {
  const int64_t slots = m.size(1);
  const int64_t d_p = slots / heads;
  std::vector<at::Tensor> y;
  for (int64_t b = 0; b < batch.count(); ++b) {
    const at::Tensor tokens = batch.rows_of(x, b);
    const at::Tensor s = affine(tokens, of_sequence(rows, b, 2), of_sequence(bias, b, 1));
    std::vector<at::Tensor> u_heads;
    for (int64_t h = 0; h < heads; ++h) {
      const at::Tensor of_head = head_columns(s, h, d_p);
      u_heads.push_back(linear ? of_head : at::softmax(of_head, 1));
    }
    at::Tensor u = at::cat(u_heads, 1);
    if (dropout.p > 0)
      u = u * ops::dropout_mask(dropout, ops::kSiteRestore, at::tensor({b}, at::kLong), at::zeros({1}, at::kLong),
                                tokens.size(0), slots, at::kDouble)[0];
    const at::Tensor mixed = u.matmul(m[b]);
    y.push_back(out_bias.defined() ? mixed + out_bias : mixed);
  }
  return at::cat(y, 0);
}

ops::CoreResult plain_core(const at::Tensor& c, const at::Tensor& r, const ops::CoreWeights& weights, int64_t heads,
                           const ops::Dropout& dropout) {
  const bool released = weights.compress_weight.defined();
  const bool cross = weights.other.defined();
  const int64_t groups = released || cross ? 1 : 3;
  const int64_t slots = c.size(1) / groups;
  const int64_t d_p = slots / heads;
  const int64_t d_h = c.size(2) / heads;
  std::vector<at::Tensor> m, handed_on;
  for (int64_t b = 0; b < c.size(0); ++b) {
    const LayerMasks masks = layer_masks(dropout, b, 0, heads, d_p, groups);
    const auto summed = [&](int64_t group, int64_t h, const at::Tensor& weight, const at::Tensor& bias) {
      const int64_t first = group * slots + h * d_p;
      return project_sum(c[b].slice(0, first, first + d_p), r[b].slice(0, first, first + d_p),
                         rows_of_head(weight, h, d_h), optional_rows_of_head(bias, h, d_h));
    };
    std::vector<at::Tensor> own;
    for (int64_t h = 0; h < heads; ++h)
      own.push_back(released ? summed(0, h, weights.compress_weight, weights.compress_bias)
                             : summed(0, h, weights.query_weight, weights.query_bias));
    const at::Tensor c_out = at::cat(own, 1);  // (d_p, d)
    const at::Tensor source = cross ? weights.other[b] : c_out;

    std::vector<at::Tensor> o;
    for (int64_t h = 0; h < heads; ++h) {
      at::Tensor q, k, v;
      if (released) {
        const int64_t e = weights.query_weight.size(0) / heads;
        q = head_columns(affine(c_out, weights.query_weight, weights.query_bias), h, e);
        k = head_columns(affine(source, weights.key_weight, weights.key_bias), h, e);
        v = head_columns(affine(source, weights.value_weight, weights.value_bias), h, d_h);
      } else {
        q = own[static_cast<size_t>(h)];
        k = cross ? head_columns(affine(source, weights.key_weight, weights.key_bias), h, d_h)
                  : summed(1, h, weights.key_weight, weights.key_bias);
        v = cross ? head_columns(affine(source, weights.value_weight, weights.value_bias), h, d_h)
                  : summed(2, h, weights.value_weight, weights.value_bias);
        if (weights.width.defined()) {
          q = q.matmul(weights.width[h]);
          k = k.matmul(weights.width[h]);
        }
      }
      const at::Tensor p = at::softmax(q.matmul(k.t()) / std::sqrt(static_cast<double>(q.size(1))), 1);
      o.push_back(dropped(p, masks.core, h).matmul(v));
    }
    at::Tensor mixed = at::cat(o, 1);  // (d_p, d)
    if (released)
      mixed = layer_norm_as_defined(mixed, weights.norm_weight, weights.norm_bias);
    std::vector<at::Tensor> m_heads;
    for (int64_t h = 0; h < heads; ++h)
      m_heads.push_back(head_columns(mixed, h, d_h).matmul(head_columns(weights.out_weight, h, d_h).t()));
    m.push_back(at::cat(m_heads, 0));
    handed_on.push_back(c_out);
  }
  return {at::stack(m), at::stack(handed_on)};
}

}  // namespace dba::test

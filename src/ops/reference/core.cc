#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <cmath>

#include "ops/reference/reference.h"

namespace dba::ops::reference {
namespace {

constexpr double kLayerNormEps = 1e-5;

// (B, d_p, H·w) ↔ (B, H, d_p, w)
at::Tensor split_heads(const at::Tensor& rows, int64_t heads) {
  return rows.view({rows.size(0), rows.size(1), heads, rows.size(2) / heads}).transpose(1, 2);
}

at::Tensor join_heads(const at::Tensor& rows) {
  return rows.transpose(1, 2).reshape({rows.size(0), rows.size(2), rows.size(1) * rows.size(3)});
}

// (out, in) → (H, w, in): the rows of one head.
at::Tensor head_rows(const at::Tensor& weight, int64_t heads) {
  return weight.view({heads, -1, weight.size(1)});
}

// (out, in) → (H, out, w): the columns that take one head's values.
at::Tensor head_columns(const at::Tensor& weight, int64_t heads) {
  return weight.view({weight.size(0), heads, -1}).transpose(0, 1);
}

at::Tensor sum_batch(const at::Tensor& per_sequence) {
  return per_sequence.sum(0);
}

/// A projection of summaries, head by head: (W X)_h P_hᵀ + r_h b_h, because W(X Pᵀ + 1 bᵀ) = (W X) Pᵀ + r bᵀ.
struct Lift {
  at::Tensor c;       // (B, H, d_p, d)
  at::Tensor r;       // (B, H, d_p, 1)
  at::Tensor weight;  // (H, w, d)
  at::Tensor bias;    // (H, 1, w) or absent

  Lift(const at::Tensor& summary, const at::Tensor& sums, const at::Tensor& w, const at::Tensor& b, int64_t heads)
      : c(summary.view({summary.size(0), heads, summary.size(1) / heads, summary.size(2)})),
        r(sums.view({sums.size(0), heads, sums.size(1) / heads, 1})),
        weight(head_rows(w, heads)),
        bias(b.defined() ? b.view({heads, 1, -1}) : b) {}

  at::Tensor forward() const {  // (B, d_p, H·w)
    auto lifted = at::matmul(c, weight.transpose(1, 2));
    if (bias.defined()) {
      lifted = lifted + r * bias;
    }
    return join_heads(lifted);
  }

  struct Gradient {
    at::Tensor c, r, weight, bias;
  };
  Gradient backward(const at::Tensor& dlifted) const {
    const auto d = split_heads(dlifted, weight.size(0));
    Gradient gradient;
    gradient.c = at::matmul(d, weight).reshape({c.size(0), c.size(1) * c.size(2), c.size(3)});
    gradient.weight = sum_batch(at::matmul(d.transpose(2, 3), c)).reshape({-1, c.size(3)});
    if (bias.defined()) {
      gradient.r = (d * bias).sum(3).reshape({c.size(0), c.size(1) * c.size(2)});
      gradient.bias = sum_batch((d * r).sum(2)).reshape({-1});
    } else {
      gradient.r = at::zeros({c.size(0), c.size(1) * c.size(2)}, c.options());
    }
    return gradient;
  }
};

/// Everything forward makes on the way and backward needs again.
struct Middle {
  bool released, cross;
  int64_t heads;
  double scale;
  CoreWeights w;                   // in the accumulation type
  std::array<at::Tensor, 3> c, r;  // row groups
  at::Tensor compressed;           // (B, d_p, d)
  at::Tensor source;               // (B, d_p, ·) what keys and values are projected from, where not lifted
  at::Tensor ql, kl;               // (B, H, d_p, w) before R
  at::Tensor q, k, v;              // (B, H, d_p, ·)
  at::Tensor p, mask, p_dropped;   // (B, H, d_p, d_p)
  at::Tensor mixed;                // (B, d_p, ·) P' V, heads joined
  at::Tensor normed, mean, rstd;
};

CoreWeights widened(const CoreWeights& weights, at::ScalarType type) {
  const auto wide = [type](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(type).contiguous() : tensor;
  };
  return {wide(weights.query_weight), wide(weights.query_bias),      wide(weights.key_weight),
          wide(weights.key_bias),     wide(weights.value_weight),    wide(weights.value_bias),
          wide(weights.width),        wide(weights.compress_weight), wide(weights.compress_bias),
          wide(weights.norm_weight),  wide(weights.norm_bias),       wide(weights.out_weight),
          wide(weights.other)};
}

Middle forward(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights, int64_t heads,
               const Dropout& dropout) {
  Middle m;
  m.released = weights.compress_weight.defined();
  m.cross = weights.other.defined();
  m.heads = heads;
  m.w = widened(weights, c.scalar_type());
  const auto& w = m.w;
  const int64_t groups = m.released || m.cross ? 1 : 3;
  const auto group_rows = c.size(1) / groups;
  for (int64_t group = 0; group < groups; ++group) {
    m.c[group] = c.narrow(1, group * group_rows, group_rows).contiguous();
    m.r[group] = r.narrow(1, group * group_rows, group_rows).contiguous();
  }

  at::Tensor queries, keys, values;  // (B, d_p, H·w)
  if (m.released) {
    m.compressed = Lift(m.c[0], m.r[0], w.compress_weight, w.compress_bias, heads).forward();
    m.source = m.cross ? w.other : m.compressed;
    queries = at::linear(m.compressed, w.query_weight, w.query_bias);
  } else {
    m.compressed = Lift(m.c[0], m.r[0], w.query_weight, w.query_bias, heads).forward();
    m.source = w.other;
    queries = m.compressed;
  }
  if (m.source.defined()) {
    keys = at::linear(m.source, w.key_weight, w.key_bias);
    values = at::linear(m.source, w.value_weight, w.value_bias);
  } else {
    keys = Lift(m.c[1], m.r[1], w.key_weight, w.key_bias, heads).forward();
    values = Lift(m.c[2], m.r[2], w.value_weight, w.value_bias, heads).forward();
  }

  m.ql = split_heads(queries, heads);
  m.kl = split_heads(keys, heads);
  m.v = split_heads(values, heads);
  m.q = w.width.defined() ? at::matmul(m.ql, w.width) : m.ql;
  m.k = w.width.defined() ? at::matmul(m.kl, w.width) : m.kl;
  m.scale = 1.0 / std::sqrt(static_cast<double>(m.q.size(3)));
  m.p = at::softmax(at::matmul(m.q, m.k.transpose(2, 3)) * m.scale, 3);
  m.p_dropped = m.p;
  if (dropout.p > 0) {
    const auto batch = c.size(0);
    const auto d_p = m.q.size(2);
    const auto sequence = at::arange(batch, dropout.rng.options());
    const auto mask = dropout_mask(dropout, kSiteCore, sequence, at::zeros_like(sequence), /*tokens=*/d_p,
                                   /*slots=*/heads * d_p, c.scalar_type());
    m.mask = mask.transpose(1, 2).reshape({batch, heads, d_p, d_p});  // query slot, then key slot
    m.p_dropped = m.p * m.mask;
  }
  m.mixed = join_heads(at::matmul(m.p_dropped, m.v));
  m.normed = m.mixed;
  if (m.released) {
    std::tie(m.normed, m.mean, m.rstd) =
        at::native_layer_norm(m.mixed, {m.mixed.size(2)}, w.norm_weight, w.norm_bias, kLayerNormEps);
  }
  return m;
}

struct LinearGradient {
  at::Tensor input, weight, bias;
};

LinearGradient linear_backward(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                               const at::Tensor& dout) {
  const auto flat = dout.reshape({-1, dout.size(2)});
  LinearGradient gradient;
  gradient.input = at::matmul(dout, weight);
  gradient.weight = at::matmul(flat.t(), input.reshape({-1, input.size(2)}));
  if (bias.defined()) {
    gradient.bias = flat.sum(0);
  }
  return gradient;
}

}  // namespace

CoreResult core(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights, int64_t heads,
                const Dropout& dropout) {
  const auto m = forward(c, r, weights, heads, dropout);
  // M_h = O_h W_O,hᵀ: the rows that `restore` mixes for head h.
  const auto mix = at::matmul(split_heads(m.normed, heads), head_columns(m.w.out_weight, heads).transpose(1, 2));
  return {mix.reshape({c.size(0), mix.size(1) * mix.size(2), mix.size(3)}), m.compressed};
}

CoreGradients core_backward(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights, int64_t heads,
                            const Dropout& dropout, const at::Tensor& dm, const at::Tensor& dcompressed) {
  const auto m = forward(c, r, weights, heads, dropout);
  const auto& w = m.w;
  CoreGradients result;
  auto& grad = result.weights;

  const auto out_columns = head_columns(w.out_weight, heads);  // (H, d_out, g)
  const auto dmix = dm.defined() ? dm.view({c.size(0), heads, dm.size(1) / heads, dm.size(2)})
                                 : at::zeros({c.size(0), heads, m.q.size(2), w.out_weight.size(0)}, c.options());
  auto dmixed = join_heads(at::matmul(dmix, out_columns));
  grad.out_weight = sum_batch(at::matmul(dmix.transpose(2, 3), split_heads(m.normed, heads)))  // (H, d_out, g)
                        .transpose(0, 1)
                        .reshape_as(w.out_weight);
  if (m.released) {
    std::tie(dmixed, grad.norm_weight, grad.norm_bias) = at::native_layer_norm_backward(
        dmixed, m.mixed, {m.mixed.size(2)}, m.mean, m.rstd, w.norm_weight, w.norm_bias, {true, true, true});
  }

  const auto dmixed_heads = split_heads(dmixed, heads);
  const auto dv = at::matmul(m.p_dropped.transpose(2, 3), dmixed_heads);
  auto dp = at::matmul(dmixed_heads, m.v.transpose(2, 3));
  if (m.mask.defined()) {
    dp = dp * m.mask;
  }
  const auto dlogits = m.p * (dp - (m.p * dp).sum(3, /*keepdim=*/true)) * m.scale;
  auto dq = at::matmul(dlogits, m.k);
  auto dk = at::matmul(dlogits.transpose(2, 3), m.q);
  if (w.width.defined()) {
    grad.width = sum_batch(at::matmul(m.ql.transpose(2, 3), dq) + at::matmul(m.kl.transpose(2, 3), dk));
    dq = at::matmul(dq, w.width.transpose(1, 2));
    dk = at::matmul(dk, w.width.transpose(1, 2));
  }

  auto dcomp = dcompressed.defined() ? dcompressed : at::zeros_like(m.compressed);
  std::array<Lift::Gradient, 3> lifted;
  if (m.source.defined()) {
    const auto of_keys = linear_backward(m.source, w.key_weight, w.key_bias, join_heads(dk));
    const auto of_values = linear_backward(m.source, w.value_weight, w.value_bias, join_heads(dv));
    grad.key_weight = of_keys.weight;
    grad.key_bias = of_keys.bias;
    grad.value_weight = of_values.weight;
    grad.value_bias = of_values.bias;
    const auto dsource = of_keys.input + of_values.input;
    if (m.cross) {
      grad.other = dsource;
    } else {
      dcomp = dcomp + dsource;
    }
  } else {
    lifted[1] = Lift(m.c[1], m.r[1], w.key_weight, w.key_bias, heads).backward(join_heads(dk));
    lifted[2] = Lift(m.c[2], m.r[2], w.value_weight, w.value_bias, heads).backward(join_heads(dv));
    grad.key_weight = lifted[1].weight;
    grad.key_bias = lifted[1].bias;
    grad.value_weight = lifted[2].weight;
    grad.value_bias = lifted[2].bias;
  }
  if (m.released) {
    const auto of_queries = linear_backward(m.compressed, w.query_weight, w.query_bias, join_heads(dq));
    grad.query_weight = of_queries.weight;
    grad.query_bias = of_queries.bias;
    lifted[0] = Lift(m.c[0], m.r[0], w.compress_weight, w.compress_bias, heads).backward(dcomp + of_queries.input);
    grad.compress_weight = lifted[0].weight;
    grad.compress_bias = lifted[0].bias;
  } else {
    lifted[0] = Lift(m.c[0], m.r[0], w.query_weight, w.query_bias, heads).backward(dcomp + join_heads(dq));
    grad.query_weight = lifted[0].weight;
    grad.query_bias = lifted[0].bias;
  }

  const bool one_group = m.released || m.cross;
  result.dc = one_group ? lifted[0].c : at::cat({lifted[0].c, lifted[1].c, lifted[2].c}, 1);
  result.dr = one_group ? lifted[0].r : at::cat({lifted[0].r, lifted[1].r, lifted[2].r}, 1);
  return result;
}

}  // namespace dba::ops::reference

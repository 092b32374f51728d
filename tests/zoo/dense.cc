#include "zoo/dense.h"

#include <cmath>
#include <numbers>
#include <vector>

namespace dba::test {
namespace {

using at::Tensor;

/// Normalised weights (n, m) times v.
Tensor weighted(const Tensor& weights, const Tensor& v, double added = 0.0) {
  return (weights / (weights.sum(1, true) + added)).matmul(v);
}

double root(const Tensor& q) {
  return std::sqrt(static_cast<double>(q.size(1)));
}

Tensor linear_transformer(const DenseLayer& layer, const Tensor& x, const Tensor& memory) {
  return layer.by_head(x, memory, [](int64_t, const Tensor& q, const Tensor& k, const Tensor& v) {
    return weighted((at::elu(q) + 1).matmul((at::elu(k) + 1).t()), v, 1e-6);
  });
}

Tensor linformer(const DenseLayer& layer, const Tensor& x, const Tensor& memory) {
  const Tensor e = layer.tensor("e"), f = layer.tensor("f").defined() ? layer.tensor("f") : e;
  return layer.by_head(x, memory, [&](int64_t h, const Tensor& q, const Tensor& k, const Tensor& v) {
    const int64_t matrix = e.size(0) == 1 ? 0 : h;
    const Tensor keys = e[matrix].slice(1, 0, k.size(0)).matmul(k);
    const Tensor values = f[matrix].slice(1, 0, v.size(0)).matmul(v);
    return at::softmax(q.matmul(keys.t()) / root(q), 1).matmul(values);
  });
}

Tensor performer(const DenseLayer& layer, const Tensor& x, const Tensor& memory) {
  const Tensor w = layer.tensor("features");
  const bool relu = layer.values.at("kernel") == "relu";
  return layer.by_head(x, memory, [&](int64_t, const Tensor& q, const Tensor& k, const Tensor& v) {
    const auto features = [&](const Tensor& rows, bool keys) {
      const Tensor scaled = rows / std::sqrt(root(rows));
      const Tensor projected = scaled.matmul(w.t());
      if (relu)
        return at::relu(projected) + 1e-3;
      // The largest exponent counts as a constant. But for the 10⁻⁴ it would leave numerator and denominator alike.
      const Tensor highest = (keys ? projected.max() : std::get<0>(projected.max(1, true))).detach();
      return (at::exp(projected - scaled.square().sum(1, true) / 2 - highest) + 1e-4) /
             std::sqrt(static_cast<double>(w.size(0)));
    };
    return weighted(features(q, false).matmul(features(k, true).t()), v);
  });
}

Tensor cosformer(const DenseLayer& layer, const Tensor& x, const Tensor& memory) {
  const auto m = static_cast<double>(std::max(x.size(0), memory.size(0)));
  const Tensor i = at::arange(x.size(0), at::kDouble).unsqueeze(1), j = at::arange(memory.size(0), at::kDouble);
  const Tensor cosine = at::cos((i - j) * (std::numbers::pi / 2 / m));
  return layer.by_head(x, memory, [&](int64_t, const Tensor& q, const Tensor& k, const Tensor& v) {
    const Tensor weights = at::relu(q).matmul(at::relu(k).t()) * cosine;
    return (weights / weights.sum(1, true).clamp_min(1e-6)).matmul(v);
  });
}

Tensor fnet(const Tensor& x) {
  const auto transform = [](int64_t n) {
    const Tensor place = at::arange(n, at::kDouble);
    const Tensor angle = -2 * std::numbers::pi * at::outer(place, place) / static_cast<double>(n);
    return at::complex(at::cos(angle), at::sin(angle));
  };
  return at::real(transform(x.size(0)).matmul(x.to(at::kComplexDouble)).matmul(transform(x.size(1))));
}

Tensor flowformer(const DenseLayer& layer, const Tensor& x, const Tensor& memory) {
  return layer.by_head(x, memory, [](int64_t, const Tensor& raw_q, const Tensor& raw_k, const Tensor& v) {
    const Tensor q = at::sigmoid(raw_q), k = at::sigmoid(raw_k);
    const auto n = static_cast<double>(q.size(0)), m = static_cast<double>(k.size(0));
    const Tensor flow = q.matmul(k.t());                                      // (n, m)
    const Tensor incoming = flow.sum(1, true), outgoing = flow.sum(0, true);  // (n, 1), (1, m)
    const Tensor conserved_in = (flow / outgoing).sum(1, true);               // (n, 1)
    const Tensor conserved_out = (flow / incoming).sum(0, true);              // (1, m)
    return at::sigmoid(conserved_in * n / m) * ((flow / incoming) * (at::softmax(conserved_out, 1) * m)).matmul(v);
  });
}

Tensor segment_mean(const Tensor& rows, int64_t landmarks) {
  const int64_t n = rows.size(0), segments = std::min(landmarks, n);
  std::vector<Tensor> means;
  for (int64_t s = 0; s < segments; ++s)
    means.push_back(rows.slice(0, s * n / segments, (s + 1) * n / segments).mean(0));
  return at::stack(means);
}

Tensor nystromformer(const DenseLayer& layer, const Tensor& x, const Tensor& memory) {
  const bool self = x.is_same(memory);
  return layer.by_head(x, memory, [&](int64_t h, const Tensor& q, const Tensor& k, const Tensor& v) {
    const Tensor marks_q = segment_mean(q, layer.integer("landmarks"));
    const Tensor marks_k = segment_mean(k, layer.integer("landmarks"));
    const auto map = [&](const Tensor& a, const Tensor& b) { return at::softmax(a.matmul(b.t()) / root(q), 1); };
    const Tensor between = map(marks_q, marks_k);
    Tensor z = between.t() / (between.sum(0).max() * between.sum(1).max());
    const Tensor identity = at::eye(between.size(0), at::kDouble);
    for (int64_t step = 0; step < layer.integer("iterations"); ++step) {
      const Tensor az = between.matmul(z);
      z = 0.25 * z.matmul(13 * identity - az.matmul(15 * identity - az.matmul(7 * identity - az)));
    }
    Tensor y = map(q, marks_k).matmul(z).matmul(map(marks_q, k)).matmul(v);
    const Tensor conv = layer.tensor("conv");
    if (!conv.defined() || !self)
      return y;
    const int64_t width = conv.size(2);
    std::vector<Tensor> filtered;
    for (int64_t i = 0; i < v.size(0); ++i) {
      Tensor sum = at::zeros_like(v[0]);
      for (int64_t t = 0; t < width; ++t)
        if (const int64_t j = i + t - width / 2; j >= 0 && j < v.size(0))
          sum = sum + conv[h][0][t][0] * v[j];
      filtered.push_back(sum);
    }
    return y + at::stack(filtered);
  });
}

Tensor luna(const DenseLayer& layer, const Tensor& x, const Tensor& memory) {
  const Tensor p = layer.tensor("slots.z");
  const int64_t d_h = x.size(1) / layer.heads;
  const Tensor slots = layer.apply("p_q", p), keys = layer.apply("p_k", memory), values = layer.apply("p_v", memory);
  std::vector<Tensor> packed;
  for (int64_t h = 0; h < layer.heads; ++h) {
    const Tensor scores = head_columns(slots, h, d_h).matmul(head_columns(keys, h, d_h).t());
    packed.push_back(at::softmax(scores / std::sqrt(static_cast<double>(d_h)), 1).matmul(head_columns(values, h, d_h)));
  }
  Tensor c = at::cat(packed, 1);
  if (layer.values.at("mask_slots") == "true")
    c = c.slice(0, 0, std::min(c.size(0), memory.size(0)));
  return layer.by_head(x, c, [](int64_t, const Tensor& q, const Tensor& k, const Tensor& v) {
    return at::softmax(q.matmul(k.t()) / root(q), 1).matmul(v);
  });
}

}  // namespace

at::Tensor DenseLayer::tensor(const std::string& name) const {
  const auto parameters = module.named_parameters();
  if (const Tensor* found = parameters.find(name))
    return *found;
  const auto buffers = module.named_buffers();
  const Tensor* found = buffers.find(name);
  return found ? *found : Tensor();
}

at::Tensor DenseLayer::apply(const std::string& linear, const at::Tensor& x) const {
  return affine(x, tensor(linear + ".weight"), tensor(linear + ".bias"));
}

at::Tensor DenseLayer::by_head(
    const at::Tensor& x, const at::Tensor& memory,
    const std::function<at::Tensor(int64_t, const at::Tensor&, const at::Tensor&, const at::Tensor&)>& of_head) const {
  const int64_t d_h = x.size(1) / heads;
  const Tensor q = apply("w_q", x), k = apply("w_k", memory), v = apply("w_v", memory);
  std::vector<Tensor> y;
  for (int64_t h = 0; h < heads; ++h)
    y.push_back(of_head(h, head_columns(q, h, d_h), head_columns(k, h, d_h), head_columns(v, h, d_h)));
  return apply("w_o", at::cat(y, 1));
}

at::Tensor pattern_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask) {
  return at::softmax((q.matmul(k.t()) / root(q)).masked_fill(mask.logical_not(), -INFINITY), 1).matmul(v);
}

at::Tensor pattern(int64_t n, int64_t m, const std::function<bool(int64_t, int64_t)>& rule) {
  Tensor mask = at::zeros({n, m}, at::kBool);
  auto entry = mask.accessor<bool, 2>();
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j)
      entry[i][j] = rule(i, j);
  return mask;
}

at::Tensor dense_attention(const std::string& member, const DenseLayer& layer, const at::Tensor& x,
                           const at::Tensor& memory) {
  if (member == "softmax")
    return layer.by_head(x, memory, [](int64_t, const Tensor& q, const Tensor& k, const Tensor& v) {
      return pattern_attention(q, k, v, at::ones({q.size(0), k.size(0)}, at::kBool));
    });
  if (member == "linear")
    return linear_transformer(layer, x, memory);
  if (member == "linformer")
    return linformer(layer, x, memory);
  if (member == "performer")
    return performer(layer, x, memory);
  if (member == "cosformer")
    return cosformer(layer, x, memory);
  if (member == "fnet")
    return fnet(x);
  if (member == "flowformer")
    return flowformer(layer, x, memory);
  if (member == "nystromformer")
    return nystromformer(layer, x, memory);
  if (member == "luna")
    return luna(layer, x, memory);
  if (member == "yoso" || member == "reformer" || member == "sinkhorn" || member == "scatterbrain")
    return dense_sorted(member, layer, x, memory);
  return dense_pattern(member, layer, x);
}

}  // namespace dba::test

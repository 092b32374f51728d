#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numbers>
#include <numeric>

#include "zoo/dense.h"

namespace dba::test {
namespace {

using at::Tensor;

Tensor unit(const Tensor& x) {
  return x / x.norm(2, {1}, true);
}

Tensor yoso(const DenseLayer& layer, const Tensor& x, const Tensor& memory) {
  const int64_t tau = layer.integer("tau");
  return layer.by_head(x, memory, [&](int64_t, const Tensor& q, const Tensor& k, const Tensor& v) {
    const Tensor cosine = unit(q).matmul(unit(k).t());
    Tensor weights;
    if (layer.values.at("kind") == "expectation") {
      weights = at::pow(1 - at::acos(cosine.detach()) / std::numbers::pi, tau);
    } else {
      weights = at::zeros_like(cosine);
      for (int64_t hash = 0; hash < layer.integer("hashes"); ++hash) {
        const Tensor w = layer.tensor("directions").slice(0, hash * tau, (hash + 1) * tau);
        const Tensor bits_q = unit(q).matmul(w.t()).gt(0), bits_k = unit(k).matmul(w.t()).gt(0);
        weights = weights + bits_q.unsqueeze(1).eq(bits_k.unsqueeze(0)).all(2).to(at::kDouble);
      }
      weights = weights.detach() / static_cast<double>(layer.integer("hashes"));
    }
    // The value is the weight, the gradient for the cosine τ/2 times it.
    const Tensor sum = (weights + static_cast<double>(tau) / 2 * weights * (cosine - cosine.detach())).matmul(v);
    return sum / sum.norm(2, {1}, true).clamp_min(1e-12);
  });
}

Tensor reformer(const DenseLayer& layer, const Tensor& x) {
  const int64_t n = x.size(0), d_h = x.size(1) / layer.heads, chunk = layer.integer("chunk");
  const Tensor qk = layer.apply("w_qk", x), v = layer.apply("w_v", x), rotations = layer.tensor("rotations");
  std::vector<Tensor> y;
  for (int64_t h = 0; h < layer.heads; ++h) {
    const Tensor q = head_columns(qk, h, d_h);
    Tensor seen = at::zeros({n, n}, at::kBool);
    for (int64_t round = 0; round < layer.integer("rounds"); ++round) {
      const Tensor rotated = q.detach().matmul(rotations[round][h]);
      const Tensor found = at::cat({rotated, -rotated}, 1).argmax(1);
      const auto bucket = found.accessor<int64_t, 1>();
      std::vector<int64_t> order(static_cast<size_t>(n)), rank(static_cast<size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return bucket[a] < bucket[b]; });
      for (int64_t r = 0; r < n; ++r)
        rank[static_cast<size_t>(order[static_cast<size_t>(r)])] = r;
      seen = seen.logical_or(pattern(n, n, [&](int64_t i, int64_t j) {
        const int64_t apart = rank[static_cast<size_t>(i)] / chunk - rank[static_cast<size_t>(j)] / chunk;
        return bucket[i] == bucket[j] && (apart == 0 || apart == 1);
      }));
    }
    const Tensor scores = (q.matmul(unit(q).t()) / std::sqrt(static_cast<double>(d_h)))
                              .masked_fill(at::eye(n, at::kBool), -5e4)
                              .masked_fill(seen.logical_not(), -INFINITY);
    y.push_back(at::softmax(scores, 1).matmul(head_columns(v, h, d_h)));
  }
  return layer.apply("w_o", at::cat(y, 1));
}

Tensor sinkhorn(const DenseLayer& layer, const Tensor& x) {
  const int64_t n = x.size(0), d = x.size(1), d_h = d / layer.heads, size = layer.integer("block");
  const int64_t blocks = (n + size - 1) / size, most = (layer.integer("max_length") + size - 1) / size;
  const auto filled_up = [&](const Tensor& rows) {
    return at::cat({rows, at::zeros({blocks * size - n, rows.size(1)}, at::kDouble)}).view({blocks, size, -1});
  };
  const Tensor plain = layer.apply("w_p", at::relu(layer.apply("w_b", filled_up(x).sum(1))));
  const Tensor all = layer.values.at("scores") == "relu" ? at::relu(plain) : plain;
  return layer.by_head(x, x, [&](int64_t h, const Tensor& q, const Tensor& k, const Tensor& v) {
    Tensor s = at::exp(all.slice(1, h * most, h * most + blocks));
    for (int64_t i = 0; i < layer.integer("iterations"); ++i) {
      s = s / s.sum(1, true);
      s = s / s.sum(0, true);
    }
    const auto sorted = [&](const Tensor& rows) { return at::einsum("ij,jtw->itw", {s, filled_up(rows)}); };
    const Tensor sorted_k = sorted(k), sorted_v = sorted(v);
    std::vector<Tensor> y;
    for (int64_t b = 0; b < blocks; ++b) {
      const auto own = [&](const Tensor& rows) { return rows.slice(0, b * size, std::min((b + 1) * size, n)); };
      const auto in_place = [&](const Tensor& rows) { return rows[b].slice(0, 0, std::min(size, n)); };
      const Tensor keys = at::cat({own(k), in_place(sorted_k)}), values = at::cat({own(v), in_place(sorted_v)});
      y.push_back(at::softmax(own(q).matmul(keys.t()) / std::sqrt(static_cast<double>(d_h)), 1).matmul(values));
    }
    return at::cat(y);
  });
}

Tensor scatterbrain(const DenseLayer& layer, const Tensor& x) {
  const int64_t n = x.size(0), half = layer.integer("window") / 2;
  const Tensor w = layer.tensor("features");
  const Tensor near = pattern(n, n, [&](int64_t i, int64_t j) { return std::abs(i - j) <= half; });
  return layer.by_head(x, x, [&](int64_t, const Tensor& q, const Tensor& k, const Tensor& v) {
    const auto width = static_cast<double>(q.size(1));
    const auto features = [&](const Tensor& rows) {
      const Tensor scaled = rows / std::pow(width, 0.25);
      return at::exp(scaled.matmul(w.t()) - scaled.square().sum(1, true) / 2) /
             std::sqrt(static_cast<double>(w.size(0)));
    };
    const Tensor weights =
        at::where(near, at::exp(q.matmul(k.t()) / std::sqrt(width)), features(q).matmul(features(k).t()));
    return (weights / weights.sum(1, true)).matmul(v);
  });
}

}  // namespace

at::Tensor dense_sorted(const std::string& member, const DenseLayer& layer, const at::Tensor& x,
                        const at::Tensor& memory) {
  if (member == "yoso")
    return yoso(layer, x, memory);
  if (member == "reformer")
    return reformer(layer, x);
  if (member == "sinkhorn")
    return sinkhorn(layer, x);
  if (member == "scatterbrain")
    return scatterbrain(layer, x);
  TORCH_CHECK(false, "no dense reference of ", member);
}

}  // namespace dba::test

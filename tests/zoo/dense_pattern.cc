#include <bit>
#include <cmath>
#include <cstdlib>

#include "zoo/dense.h"
#include "zoo/random_blocks.h"

namespace dba::test {
namespace {

using at::Tensor;
using Rule = std::function<bool(int64_t, int64_t)>;

Tensor attend_where(const DenseLayer& layer, const Tensor& x, const std::function<Rule(int64_t head)>& rule_of) {
  return layer.by_head(x, x, [&](int64_t h, const Tensor& q, const Tensor& k, const Tensor& v) {
    return pattern_attention(q, k, v, pattern(x.size(0), x.size(0), rule_of(h)));
  });
}

Tensor longformer(const DenseLayer& layer, const Tensor& x) {
  const int64_t n = x.size(0), d_h = x.size(1) / layer.heads, half = layer.integer("window") / 2;
  const int64_t globals = std::min(layer.integer("globals"), n);
  const Tensor near = pattern(n, n, [&](int64_t i, int64_t j) { return std::abs(i - j) <= half || j < globals; });
  const Tensor all = at::ones({n, n}, at::kBool);
  return layer.by_head(x, x, [&](int64_t h, const Tensor& q, const Tensor& k, const Tensor& v) {
    const Tensor y = pattern_attention(q, k, v, near);
    if (globals == 0)
      return y;
    const auto own = [&](const char* name) { return head_columns(layer.apply(name, x), h, d_h); };
    const Tensor y_global = pattern_attention(own("global_q"), own("global_k"), own("global_v"), all);
    return at::cat({y_global.slice(0, 0, globals), y.slice(0, globals)});
  });
}

Tensor bigbird(const DenseLayer& layer, const Tensor& x) {
  const int64_t block = layer.integer("block"), beside = layer.integer("window") / 2;
  const int64_t last = (x.size(0) - 1) / block, random = layer.integer("random");
  const Tensor drawn = zoo::random_blocks(at::tensor({last + 1}, at::kLong), layer.heads, last + 1, beside, random,
                                          layer.integer("seed"))
                           .contiguous();
  const auto chosen = drawn.accessor<int64_t, 4>();
  return attend_where(layer, x, [&](int64_t h) -> Rule {
    return [&, h](int64_t i, int64_t j) {
      const int64_t asks = i / block, asked = j / block;
      bool seen = asks == 0 || asks == last || asked == 0 || asked == last || std::abs(asks - asked) <= beside;
      for (int64_t r = 0; r < random; ++r)
        seen = seen || chosen[0][h][asks][r] == asked;
      return seen;
    };
  });
}

Tensor sparse(const DenseLayer& layer, const Tensor& x) {
  const auto root = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(x.size(0)))));
  const int64_t l = layer.integer("block") == 0 ? root : layer.integer("block"), c = layer.integer("summary");
  return attend_where(layer, x, [&](int64_t) -> Rule {
    return [&](int64_t i, int64_t j) { return i / l == j / l || j % l >= l - c; };
  });
}

Tensor pixelfly(const DenseLayer& layer, const Tensor& x) {
  const int64_t block = layer.integer("block"), butterfly = layer.integer("butterfly"), rank = layer.integer("rank");
  return attend_where(layer, x, [&](int64_t) -> Rule {
    return [&](int64_t i, int64_t j) {
      const auto apart = static_cast<uint64_t>((i / block) ^ (j / block));
      const bool linked = apart == 0 || (std::has_single_bit(apart) && apart < static_cast<uint64_t>(butterfly));
      return linked || i < rank || j < rank;
    };
  });
}

Tensor synthesizer(const DenseLayer& layer, const Tensor& x) {
  const int64_t n = x.size(0), d_h = x.size(1) / layer.heads;
  const std::string& kind = layer.values.at("kind");
  const Tensor v = layer.apply("w_v", x);
  std::vector<Tensor> y;
  for (int64_t h = 0; h < layer.heads; ++h) {
    const auto hidden = [&] { return head_columns(at::relu(layer.apply("w_1", x)), h, d_h); };
    Tensor scores;
    if (kind == "dense") {
      scores = hidden().matmul(layer.tensor("w_2")[h]).slice(1, 0, n);
    } else if (kind == "factorised_dense") {
      const Tensor a = hidden().matmul(layer.tensor("w_a")[h]), b = hidden().matmul(layer.tensor("w_b")[h]);
      std::vector<Tensor> columns;
      for (int64_t j = 0; j < n; ++j)
        columns.push_back(a.select(1, j % a.size(1)) * b.select(1, j / a.size(1)));
      scores = at::stack(columns, 1);
    } else if (kind == "factorised_random") {
      scores = layer.tensor("r_1")[h].matmul(layer.tensor("r_2")[h].t()).slice(0, 0, n).slice(1, 0, n);
    } else {
      scores = layer.tensor("r")[h].slice(0, 0, n).slice(1, 0, n);
    }
    if (kind == "mixed") {
      const Tensor q = head_columns(layer.apply("w_q", x), h, d_h), k = head_columns(layer.apply("w_k", x), h, d_h);
      const Tensor share = at::exp(layer.tensor("alpha")) / at::exp(layer.tensor("alpha")).sum();
      scores = share[0] * scores + share[1] * q.matmul(k.t()) / std::sqrt(static_cast<double>(d_h));
    }
    y.push_back(at::softmax(scores, 1).matmul(head_columns(v, h, d_h)));
  }
  return layer.apply("w_o", at::cat(y, 1));
}

}  // namespace

at::Tensor dense_pattern(const std::string& member, const DenseLayer& layer, const at::Tensor& x) {
  if (member == "local") {
    const int64_t block = layer.integer("block");
    return attend_where(layer, x,
                        [&](int64_t) -> Rule { return [&](int64_t i, int64_t j) { return i / block == j / block; }; });
  }
  if (member == "longformer")
    return longformer(layer, x);
  if (member == "bigbird")
    return bigbird(layer, x);
  if (member == "sparse")
    return sparse(layer, x);
  if (member == "pixelfly")
    return pixelfly(layer, x);
  if (member == "synthesizer")
    return synthesizer(layer, x);
  TORCH_CHECK(false, "no dense reference of ", member);
}

}  // namespace dba::test

#pragma once

#include <string>
#include <vector>

#include "dba/ops.h"
#include "support/cases.h"
#include "support/comparison.h"

namespace dba::test {

/// One of the computations that `core` performs.
struct CoreKind {
  std::string name;
  bool released;
  bool cross;
  bool width;      ///< with R; form `paper` only
  int64_t groups;  ///< groups of H·d_p score rows
};

inline std::vector<CoreKind> core_kinds() {
  return {{"paper", false, false, true, 3},      {"paper_without_R", false, false, false, 3},
          {"paper_cross", false, true, true, 1}, {"paper_cross_without_R", false, true, false, 1},
          {"released", true, false, false, 1},   {"released_cross", true, true, false, 1}};
}

/// Random leaves for everything `core` takes.
class CoreInputs {
 public:
  static constexpr int64_t kOut = 6;  ///< rows of W_O

  CoreInputs(const LayerCase& layer, const CoreKind& kind, int64_t batch, uint64_t seed) {
    Random random(seed);
    constexpr int64_t d = LayerCase::d;
    const int64_t heads = layer.heads, e = layer.head_width();
    const int64_t score_width = kind.released ? heads * e : d;
    const auto matrix = [&](const std::string& name, int64_t out) { return keep(name, random.leaf({out, d}, 0.3)); };
    const auto vector = [&](const std::string& name, int64_t size) {
      return layer.bias ? keep(name, random.leaf({size}, 0.5)) : at::Tensor();
    };
    c = random.leaf({batch, kind.groups * heads * layer.d_p, d});
    r = random.leaf({batch, kind.groups * heads * layer.d_p});
    weights.query_weight = matrix("query_weight", score_width);
    weights.query_bias = vector("query_bias", score_width);
    weights.key_weight = matrix("key_weight", score_width);
    weights.key_bias = vector("key_bias", score_width);
    weights.value_weight = matrix("value_weight", d);
    weights.value_bias = vector("value_bias", d);
    if (kind.width)
      weights.width = keep("width", random.leaf({heads, d / heads, e}, 0.7));
    if (kind.released) {
      weights.compress_weight = matrix("compress_weight", d);
      weights.compress_bias = vector("compress_bias", d);
      weights.norm_weight = keep("norm_weight", random.leaf({d}));
      weights.norm_bias = keep("norm_bias", random.leaf({d}));
    }
    weights.out_weight = matrix("out_weight", kOut);
    if (kind.cross)
      weights.other = keep("other", random.leaf({batch, layer.d_p, d}));
  }

  const std::vector<Named>& named_weights() const {
    return named_weights_;
  }
  std::vector<Named> named() const {
    std::vector<Named> all = {{"c", c}, {"r", r}};
    all.insert(all.end(), named_weights_.begin(), named_weights_.end());
    return all;
  }

  at::Tensor c, r;
  ops::CoreWeights weights;

 private:
  at::Tensor keep(const std::string& name, const at::Tensor& t) {
    named_weights_.push_back({name, t});
    return t;
  }

  std::vector<Named> named_weights_;
};

}  // namespace dba::test

#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ostream>
#include <string>
#include <vector>

#include "dba/sequences.h"

/// The one list of cases that the numerical tests share, and the random tensors they run on.
namespace dba::test {

/// Lengths that every batch mixes: empty, tiny, around a power of two, odd.
inline const std::vector<int64_t> kLengths = {0, 1, 2, 15, 16, 17, 63, 100};
/// Without the long ones, for what costs the square of the length.
inline const std::vector<int64_t> kShortLengths = {3, 0, 17, 1};

struct LayerCase {
  int64_t heads;
  int64_t d_p;
  bool per_sequence;  ///< Z, and with it the rows made from it, differ between the sequences
  bool linear;        ///< normalise `linear`
  bool bias;
  double dropout;
  static constexpr int64_t d = 16;
  static constexpr int64_t d_in = 5;  ///< divides by one head alone: the width per head is rounded up

  int64_t head_width() const {
    return (d_in + heads - 1) / heads;
  }
  std::string name() const {
    return "heads" + std::to_string(heads) + "_dp" + std::to_string(d_p) + (per_sequence ? "_each" : "_shared") +
           (linear ? "_linear" : "_softmax") + (bias ? "" : "_nobias") + (dropout > 0 ? "_dropout" : "");
  }
};

inline std::ostream& operator<<(std::ostream& stream, const LayerCase& layer) {
  return stream << layer.name();
}

inline std::string case_name(const ::testing::TestParamInfo<LayerCase>& info) {
  return info.param.name();
}

/// All pairs of heads and d_p; the switches vary so that any two of the axes meet in every combination.
inline std::vector<LayerCase> layer_cases() {
  const std::vector<int64_t> heads = {1, 2, 4, 8};
  const std::vector<int64_t> slots = {1, 3, 16, 64};
  std::vector<LayerCase> cases;
  for (size_t i = 0; i < heads.size(); ++i)
    for (size_t j = 0; j < slots.size(); ++j)
      cases.push_back(
          {heads[i], slots[j], (i + j) % 2 == 1, (i + j / 2) % 2 == 1, i + j != 3, (i / 2 + j) % 2 == 1 ? 0.25 : 0.0});
  return cases;
}

/// Random tensors from a seed of their own: PyTorch's default generator stays untouched.
class Random {
 public:
  explicit Random(uint64_t seed) : generator_(at::detail::createCPUGenerator(seed)) {}

  at::Tensor normal(at::IntArrayRef sizes, double deviation = 1.0) {
    return at::normal(0.0, deviation, sizes, generator_, at::TensorOptions().dtype(at::kDouble));
  }
  /// A leaf whose gradient is asked for.
  at::Tensor leaf(at::IntArrayRef sizes, double deviation = 1.0) {
    return normal(sizes, deviation).requires_grad_(true);
  }
  /// 0 … end − 1.
  at::Tensor integers(int64_t end, at::IntArrayRef sizes) {
    return at::randint(end, sizes, generator_, at::TensorOptions().dtype(at::kLong));
  }
  at::Tensor permutation(int64_t n) {
    return at::randperm(n, generator_, at::TensorOptions().dtype(at::kLong));
  }
  /// New values for every parameter: matrices keep the size of what they multiply, vectors are of order one.
  void fill(torch::nn::Module& module) {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : module.parameters()) {
      const double deviation = parameter.dim() > 1 ? 1.0 / std::sqrt(static_cast<double>(parameter.size(-1))) : 0.5;
      parameter.copy_(normal(parameter.sizes(), deviation));
    }
  }

 private:
  at::Generator generator_;
};

inline at::Tensor longs(const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong);
}

/// Packed sequences of the given lengths and the bounds of each.
struct PackedBatch {
  std::vector<int64_t> lengths;
  std::vector<int64_t> begin, end;
  int64_t rows = 0;
  Sequences sequences;

  explicit PackedBatch(std::vector<int64_t> lengths_) : lengths(std::move(lengths_)) {
    std::vector<int64_t> bounds = {0};
    for (const int64_t length : lengths) {
      begin.push_back(rows);
      rows += length;
      end.push_back(rows);
      bounds.push_back(rows);
    }
    sequences = Sequences::packed(at::tensor(bounds, at::kLong), rows);
  }
  int64_t count() const {
    return static_cast<int64_t>(lengths.size());
  }
  at::Tensor rows_of(const at::Tensor& x, int64_t b) const {
    return x.slice(0, begin[static_cast<size_t>(b)], end[static_cast<size_t>(b)]);
  }
};

/// What sequence b has of a tensor that is shared (`rank` dimensions) or per sequence (one more).
inline at::Tensor of_sequence(const at::Tensor& t, int64_t b, int64_t rank) {
  return t.defined() && t.dim() > rank ? t[b] : t;
}

}  // namespace dba::test

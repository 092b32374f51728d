#pragma once

#include <torch/torch.h>

#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "dba/ops.h"
#include "ops/arguments.h"
#include "ops/reference/reference.h"
#include "ops/signatures.h"
#include "support/core_inputs.h"
#include "support/kernels_on_gpu.h"

/// `core` and its backward on a GPU, and the same by the reference.
namespace dba::test {

class CoreOnGpu : public KernelsOnGpu {};

struct CoreShape {
  int64_t batch, heads, d_p, d, e, d_out;
  bool bias;
  double dropout;
};

inline std::ostream& operator<<(std::ostream& stream, const CoreShape& s) {
  return stream << "B=" << s.batch << " H=" << s.heads << " d_p=" << s.d_p << " d=" << s.d << " e=" << s.e
                << " d_out=" << s.d_out << (s.bias ? " bias" : "") << " p=" << s.dropout;
}

/// One call of core and of its backward, on the GPU.
struct CoreCase {
  at::Tensor c, r, dm, dcompressed;
  ops::CoreWeights weights;
  ops::Dropout dropout;
  int64_t heads;

  CoreCase(const CoreShape& s, const CoreKind& kind, at::ScalarType type, uint64_t seed) : heads(s.heads) {
    Random random(seed);
    const auto tensor = [&](at::IntArrayRef sizes, double deviation, at::ScalarType of) {
      return random.normal(sizes, deviation).to(of).to(at::kCUDA);
    };
    const double deviation = 1.0 / std::sqrt(static_cast<double>(s.d));
    const int64_t score_width = kind.released ? s.heads * s.e : s.d;
    const auto matrix = [&](int64_t out) { return tensor({out, s.d}, deviation, type); };
    const auto vector = [&](int64_t size) { return s.bias ? tensor({size}, 0.5, type) : at::Tensor(); };
    const int64_t rows = kind.groups * s.heads * s.d_p;
    c = tensor({s.batch, rows, s.d}, 1.0, at::kFloat);
    r = tensor({s.batch, rows}, 1.0, at::kFloat);
    weights.query_weight = matrix(score_width);
    weights.query_bias = vector(score_width);
    weights.key_weight = matrix(score_width);
    weights.key_bias = vector(score_width);
    weights.value_weight = matrix(s.d);
    weights.value_bias = vector(s.d);
    if (kind.width)
      weights.width = tensor({s.heads, s.d / s.heads, s.e}, 1.0 / std::sqrt(static_cast<double>(s.e)), type);
    if (kind.released) {
      weights.compress_weight = matrix(s.d);
      weights.compress_bias = vector(s.d);
      weights.norm_weight = tensor({s.d}, 1.0, type);
      weights.norm_bias = tensor({s.d}, 0.5, type);
    }
    weights.out_weight = matrix(s.d_out);
    if (kind.cross)
      weights.other = tensor({s.batch, s.d_p, s.d}, 1.0, type);
    dm = tensor({s.batch, s.heads * s.d_p, s.d_out}, 1.0, at::kFloat);
    dcompressed = tensor({s.batch, s.d_p, s.d}, 1.0, at::kFloat);
    dropout = {s.dropout, at::tensor({int64_t{11}, int64_t{5}}, at::kLong).to(at::kCUDA)};
  }

  ops::CoreWeights weights_as(const at::TensorOptions& options) const {
    ops::CoreWeights result;
    for (const auto member : ops::core_weight_members()) {
      if ((weights.*member).defined())
        result.*member = (weights.*member).to(options);
    }
    return result;
  }

  /// m, compressed, dc, dr, then the gradients of the weights that are present.
  std::vector<at::Tensor> run() const {
    const auto result = ops::core(c, r, weights, heads, dropout);
    std::vector<at::Tensor> all{result.m, result.c};
    const auto gradients = backward(dm, dcompressed);
    all.insert(all.end(), gradients.begin(), gradients.end());
    return all;
  }
  std::vector<at::Tensor> backward(const at::Tensor& of_m, const at::Tensor& of_compressed) const {
    const auto op = ops::typed_operator<ops::signature::CoreBackward>("dba::core_backward");
    return op.call(c, r, ops::core_weight_list(weights), heads, dropout.p, ops::optional(dropout.rng),
                   ops::optional(of_m), ops::optional(of_compressed));
  }
  /// The same by the reference, everything in one type, on the CPU.
  std::vector<at::Tensor> reference(at::ScalarType type) const {
    const auto options = at::device(at::kCPU).dtype(type);
    const auto typed = weights_as(options);
    const ops::Dropout mask{dropout.p, dropout.rng.cpu()};
    const auto result = ops::reference::core(c.to(options), r.to(options), typed, heads, mask);
    const auto gradients = ops::reference::core_backward(c.to(options), r.to(options), typed, heads, mask,
                                                         dm.to(options), dcompressed.to(options));
    std::vector<at::Tensor> all{result.m, result.c, gradients.dc, gradients.dr};
    for (const auto member : ops::core_weight_members()) {
      if ((weights.*member).defined())
        all.push_back((gradients.weights.*member).to(type));
    }
    return all;
  }
  std::vector<std::string> names() const {
    static const std::vector<std::string> kNames = {
        "query_weight",    "query_bias",    "key_weight",  "key_bias",  "value_weight", "value_bias", "width",
        "compress_weight", "compress_bias", "norm_weight", "norm_bias", "out_weight",   "other"};
    std::vector<std::string> all{"m", "compressed", "dc", "dr"};
    size_t i = 0;
    for (const auto member : ops::core_weight_members()) {
      if ((weights.*member).defined())
        all.push_back(kNames[i]);
      ++i;
    }
    return all;
  }
};

}  // namespace dba::test

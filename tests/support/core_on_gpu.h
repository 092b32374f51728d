#pragma once

#include <torch/torch.h>

#include <algorithm>
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
  /// The same by the reference on the GPU, the operands as they are. What kernels of half weights leave in float32 is
  /// that of the reference in float16, whose 11 bits are those of the TF32 factors between slots; a reference in
  /// float32 would have no such factors, and how much their rounding matters depends on how steep the slots' softmax
  /// is.
  std::vector<at::Tensor> reference() const {
    auto all = reference(c, r, weights, heads, dropout, dm, dcompressed);
    if (of_half_weights()) {
      const auto options = at::device(at::kCUDA).dtype(at::kHalf);
      const auto narrow = reference(c.to(options), r.to(options), weights_as(options), heads, dropout, dm.to(options),
                                    dcompressed.to(options));
      std::copy_n(narrow.begin(), 4, all.begin());
    }
    return all;
  }
  /// The same in double, on the CPU.
  std::vector<at::Tensor> exact() const {
    const auto options = at::device(at::kCPU).dtype(at::kDouble);
    return reference(c.to(options), r.to(options), weights_as(options), heads, {dropout.p, dropout.rng.cpu()},
                     dm.to(options), dcompressed.to(options));
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

  bool of_half_weights() const {
    return at::isReducedFloatingType(weights.query_weight.scalar_type());
  }

  Allowance allowance() const {
    Allowance result;
    const bool released = weights.compress_weight.defined(), cross = weights.other.defined();
    // All factors but those of M have 16 bits or more, two half or two TF32 numbers: a 32nd of float16's error, of
    // which they are allowed four.
    if (of_half_weights())
      result.times = {{"compressed", 0.125}, {"dc", 0.125}, {"dr", 0.125}};
    // What is added to all keys, the queries' softmax does not see. (In form `paper` it is r b, and r is random here.)
    if ((released || cross) && weights.key_bias.defined())
      result.vanishing["key_bias"] = "key_weight";
    if (dm.size(1) == heads) {  // one slot: the softmax is 1, whatever the score
      for (const auto* name : {"key_weight", "key_bias", "width"})
        result.vanishing[name] = "value_weight";
      if (released)
        result.vanishing["query_weight"] = result.vanishing["query_bias"] = "value_weight";
    }
    return result;
  }

 private:
  static std::vector<at::Tensor> reference(const at::Tensor& c, const at::Tensor& r, const ops::CoreWeights& weights,
                                           int64_t heads, const ops::Dropout& mask, const at::Tensor& dm,
                                           const at::Tensor& dcompressed) {
    const auto result = ops::reference::core(c, r, weights, heads, mask);
    const auto gradients = ops::reference::core_backward(c, r, weights, heads, mask, dm, dcompressed);
    std::vector<at::Tensor> all{result.m, result.c, gradients.dc, gradients.dr};
    for (const auto member : ops::core_weight_members()) {
      if ((weights.*member).defined())
        all.push_back((gradients.weights.*member).to((weights.*member).scalar_type()));
    }
    return all;
  }
};

}  // namespace dba::test

#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <string>

#include "dba/sequences.h"

namespace dba {

/// What is said of a whole sequence.
///   first    its first token (often a <CLS> symbol that the data puts there)
///   mean     the mean of its tokens
///   flatten  all its tokens one after the other, zeros behind its end
enum class Pool { first, mean, flatten };

Pool parse_pool(const std::string& name);
std::string to_string(Pool pool);

struct PoolingOptions {
  explicit PoolingOptions(int64_t d) : d_(d) {}
  TORCH_ARG(int64_t, d);
  TORCH_ARG(Pool, kind) = Pool::mean;
  /// Tokens in the result of `flatten`. Longer sequences are an error on the CPU and in debug mode; otherwise, because
  /// a check would have to wait for the GPU, they are cut.
  TORCH_ARG(int64_t, max_length) = 0;
};

/// From tokens to one vector per sequence; zeros for an empty one. Nothing to learn.
class PoolingImpl : public torch::nn::Cloneable<PoolingImpl> {
 public:
  explicit PoolingImpl(PoolingOptions options_);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  /// x (N, d) or (B, n, d). Returns (B, width()).
  at::Tensor forward(const at::Tensor& x, const Sequences& sequences);
  /// d, or max_length·d for `flatten`.
  int64_t width() const;

  PoolingOptions options;
};
TORCH_MODULE(Pooling);

}  // namespace dba

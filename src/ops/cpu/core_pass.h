#pragma once

#include "ops/reference/reference.h"

/// `core` and its gradient over stacks of sequences: what its namesakes in ops/reference compute, in an order that does
/// not depend on the number of threads.
namespace dba::ops::cpu {

CoreResult core(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights, int64_t heads,
                const Dropout& dropout);

reference::CoreGradients core_backward(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights,
                                       int64_t heads, const Dropout& dropout, const at::Tensor& dm,
                                       const at::Tensor& dcompressed);

/// Sequences whose d_p rows are stacked at most, so that one product serves them all.
constexpr int64_t most_stacked(int64_t d_p) {
  constexpr int64_t kRows = 96;
  return d_p < kRows ? kRows / d_p : 1;
}

/// How a batch is cut into stacks: evenly, and into enough of them for several threads.
class CoreStacks {
 public:
  CoreStacks(int64_t batch, int64_t d_p);
  int64_t count() const {
    return count_;
  }
  /// The first sequence of stack i; that of the stack beyond the last is the number of sequences.
  int64_t first(int64_t i) const {
    return i * batch_ / count_;
  }
  int64_t most_sequences() const {
    return count_ == 0 ? 0 : (batch_ + count_ - 1) / count_;
  }

 private:
  int64_t batch_, count_;
};

}  // namespace dba::ops::cpu

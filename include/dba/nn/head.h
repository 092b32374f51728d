#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <string>

namespace dba {

/// From the vector of a sequence to its logits.
///   linear  one linear layer
///   mlp     linear layer, ReLU, dropout, linear layer without bias
enum class HeadKind { linear, mlp };

HeadKind parse_head_kind(const std::string& name);
std::string to_string(HeadKind kind);

struct HeadOptions {
  HeadOptions(int64_t width, int64_t classes) : width_(width), classes_(classes) {}
  /// Width of the vectors that come in.
  TORCH_ARG(int64_t, width);
  TORCH_ARG(int64_t, classes);
  TORCH_ARG(HeadKind, kind) = HeadKind::linear;
  /// Width between the two layers; `mlp` only.
  TORCH_ARG(int64_t, hidden) = 0;
  /// `mlp` only.
  TORCH_ARG(double, dropout) = 0.0;
};

class HeadImpl : public torch::nn::Cloneable<HeadImpl> {
 public:
  explicit HeadImpl(HeadOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// (B, width) → (B, classes)
  at::Tensor forward(const at::Tensor& x);

  HeadOptions options;
  torch::nn::Linear linear{nullptr};                       ///< linear
  torch::nn::Linear linear_1{nullptr}, linear_2{nullptr};  ///< mlp
};
TORCH_MODULE(Head);

}  // namespace dba

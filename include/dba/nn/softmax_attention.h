#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "dba/nn/attention.h"

namespace dba {

struct SoftmaxAttentionOptions {
  SoftmaxAttentionOptions(int64_t d, int64_t heads) : d_(d), heads_(heads) {}
  TORCH_ARG(int64_t, d);
  TORCH_ARG(int64_t, heads);
  /// On the attention map.
  TORCH_ARG(double, dropout) = 0.0;
  TORCH_ARG(bool, bias) = true;
};

/// Multi-head softmax attention on scaled_dot_product_attention: the yardstick.
class SoftmaxAttentionImpl : public torch::nn::Cloneable<SoftmaxAttentionImpl>, public Attention {
 public:
  SoftmaxAttentionImpl(int64_t d, int64_t heads) : SoftmaxAttentionImpl(SoftmaxAttentionOptions(d, heads)) {}
  explicit SoftmaxAttentionImpl(SoftmaxAttentionOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  using Attention::forward;
  AttentionOutput attend(const at::Tensor& x, const Sequences& sequences, const at::Tensor& z,
                         bool need_weights) override;

  SoftmaxAttentionOptions options;
  torch::nn::Linear w_q{nullptr}, w_k{nullptr}, w_v{nullptr}, w_o{nullptr};
};
TORCH_MODULE(SoftmaxAttention);

}  // namespace dba

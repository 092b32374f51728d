#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

namespace dba {

struct SlotsOptions {
  SlotsOptions(int64_t d_p, int64_t d) : d_p_(d_p), d_(d) {}
  /// Slots.
  TORCH_ARG(int64_t, d_p);
  /// Width of a slot.
  TORCH_ARG(int64_t, d);
  /// Dropout, drawn for every sequence.
  TORCH_ARG(double, dropout) = 0.0;
  /// Whether Z passes a LayerNorm first.
  TORCH_ARG(bool, layer_norm) = false;
};

/// The first Z: one learned (d_p, d) parameter, N(0, 1/d) at first.
class SlotsImpl : public torch::nn::Cloneable<SlotsImpl> {
 public:
  explicit SlotsImpl(SlotsOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// (d_p, d), or (B, d_p, d) where dropout makes the slots differ between the `batch` sequences.
  at::Tensor forward(int64_t batch);

  SlotsOptions options;
  at::Tensor z;                        ///< (d_p, d)
  torch::nn::LayerNorm norm{nullptr};  ///< only with layer_norm
};
TORCH_MODULE(Slots);

}  // namespace dba

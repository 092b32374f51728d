#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <string>

namespace dba {

/// `layer`: every row by itself. `batch`: every column over all real rows, as BatchNorm1d does on packed rows.
enum class NormKind { layer, batch };

NormKind parse_norm_kind(const std::string& name);
std::string to_string(NormKind kind);

struct TokenNormOptions {
  explicit TokenNormOptions(int64_t d) : d_(d) {}
  TORCH_ARG(int64_t, d);
  TORCH_ARG(NormKind, kind) = NormKind::layer;
  TORCH_ARG(double, eps) = 1e-5;
  /// Weight of the newest batch in the running statistics; `batch` only.
  TORCH_ARG(double, momentum) = 0.1;
};

/// Normalises token rows. Rows of nobody never enter a statistic, and no length is read back from a GPU.
class TokenNormImpl : public torch::nn::Cloneable<TokenNormImpl> {
 public:
  explicit TokenNormImpl(TokenNormOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// x (N, d); row_mask (N) is `Sequences::row_mask()`, or undefined where all rows are real.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& row_mask = {});

  TokenNormOptions options;
  at::Tensor weight, bias;               ///< (d)
  at::Tensor running_mean, running_var;  ///< (d), buffers of `batch`

 private:
  at::Tensor batch_norm(const at::Tensor& x, const at::Tensor& row_mask);
};
TORCH_MODULE(TokenNorm);

}  // namespace dba

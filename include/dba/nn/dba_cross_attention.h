#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "dba/nn/attention.h"
#include "dba/nn/dba_attention.h"
#include "dba/nn/slots.h"

namespace dba {

/// The compressed sequence of a stream before any cross-attention has made one:
///   paper     C = concat_h( softmax over tokens(Z_h Q_hᵀ/√d_h) Q_h ),  Q = X W_Q + b_Q
///   released  C = concat_h( softmax over tokens((Z P_q)_h (X P_k)_hᵀ/√e) (X P_v)_h )
/// Takes the options of DBAttention: d, heads, d_p, d_in, form, dropout, z_dropout, bias.
class CompressorImpl : public torch::nn::Cloneable<CompressorImpl> {
 public:
  explicit CompressorImpl(DBAttentionOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// x (N, d) or (B, n, d); returns C (B, d_p, d).
  at::Tensor forward(const at::Tensor& x, const Sequences& sequences);

  DBAttentionOptions options;
  Slots slots{nullptr};
  torch::nn::Linear w_q{nullptr};                              ///< paper
  torch::nn::Linear p_q{nullptr}, p_k{nullptr}, p_v{nullptr};  ///< released
};
TORCH_MODULE(Compressor);

struct CrossAttentionOutput {
  at::Tensor y;                             ///< like x_1
  at::Tensor c;                             ///< C_1 (B, d_p, d): what the other stream's next layer is handed
  std::optional<AttentionWeights> weights;  ///< w_r, p and w_r_prime
};

/// Stream 1 asks stream 2, which is given by its compressed sequence C_2. Every output row depends on all tokens of
/// stream 1 too, so both streams need their own sequences, and nothing here is causal.
///   form `paper`     w_z, w_q, w_k, w_v, w_o (d → d), r (H, d_h, e), f_r (d → H·d_p)
///   form `released`  p_q, p_k, w_q, w_k (d → H·e), p_v, w_v, w_o (d → d), w_u (d → H·d_p), norm (d)
/// Takes the options of DBAttention; z_update, hands_on_z, z_dropout and compress_length have no meaning here.
class DBACrossAttentionImpl : public torch::nn::Cloneable<DBACrossAttentionImpl> {
 public:
  DBACrossAttentionImpl(int64_t d, int64_t heads) : DBACrossAttentionImpl(DBAttentionOptions(d, heads)) {}
  explicit DBACrossAttentionImpl(DBAttentionOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// x_1 (N, d) or (B, n, d); c_2 (B, d_p, d).
  CrossAttentionOutput forward(const at::Tensor& x_1, const Sequences& sequences_1, const at::Tensor& c_2,
                               bool need_weights = false);

  DBAttentionOptions options;
  torch::nn::Linear w_z{nullptr};  ///< paper
  torch::nn::Linear w_q{nullptr}, w_k{nullptr}, w_v{nullptr}, w_o{nullptr};
  at::Tensor r;                                                              ///< paper, with compress_width
  torch::nn::Linear f_r{nullptr};                                            ///< paper
  torch::nn::Linear p_q{nullptr}, p_k{nullptr}, p_v{nullptr}, w_u{nullptr};  ///< released
  torch::nn::LayerNorm norm{nullptr};                                        ///< released
};
TORCH_MODULE(DBACrossAttention);

}  // namespace dba

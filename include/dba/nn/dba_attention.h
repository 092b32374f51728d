#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "dba/nn/attention.h"
#include "dba/nn/slots.h"

namespace dba {

/// The order of the products. All compute the same function.
///   two_pass   compress, core, restore: linear memory traffic, no (n × anything) tensor is stored
///   projected  queries and keys of all tokens first, then attention with Z as the queries: fewer operations where
///              heads and slots are many and tokens narrow. With dropout, whose masks belong to the two passes, and
///              under autocast it is two_pass
///   direct     the equations as written, on a padded batch: for comparison and for gradients of gradients
///   automatic  whichever of them the planner expects to be fastest for the shape; `dba plan` explains its choice
/// Cross-attention and compressors know two_pass and direct; the other two mean two_pass there.
enum class Order { two_pass, projected, direct, automatic };

/// "two_pass", "projected", "direct", "auto".
Order parse_order(const std::string& name);
std::string to_string(Order order);

struct DBAttentionOptions {
  DBAttentionOptions(int64_t d, int64_t heads) : d_(d), heads_(heads) {}
  /// Width of the tokens; divisible by `heads`.
  TORCH_ARG(int64_t, d);
  TORCH_ARG(int64_t, heads);
  /// Slots per head: the length that sequences are compressed to.
  TORCH_ARG(int64_t, d_p) = 16;
  /// Width of the compressed queries and keys over all heads; rounded up to a multiple of `heads`.
  TORCH_ARG(int64_t, d_in) = 24;
  TORCH_ARG(Form, form) = Form::paper;
  /// Of W_r' and W_c'; form `paper` only.
  TORCH_ARG(Normalise, normalise) = Normalise::softmax;
  TORCH_ARG(ZUpdate, z_update) = ZUpdate::residual_norm;
  /// Whether another layer takes this layer's Z. The last layer of a stack says false and registers no Z-norm.
  TORCH_ARG(bool, hands_on_z) = true;
  /// On W_r, W_c, P', W_c' and W_r'.
  TORCH_ARG(double, dropout) = 0.0;
  /// Of the slots: on the first Z (z_update `own`) and on C in `residual_norm`.
  TORCH_ARG(double, z_dropout) = 0.0;
  TORCH_ARG(bool, bias) = true;
  /// Ablations of form `paper`. Without length compression the whole n × n map is formed; without width
  /// compression R = I and e = d_h.
  TORCH_ARG(bool, compress_length) = true;
  TORCH_ARG(bool, compress_width) = true;
  TORCH_ARG(Order, order) = Order::two_pass;
  /// Which layer of a stack this is: random choices of the zoo's members differ from layer to layer. DBA makes none.
  TORCH_ARG(int64_t, layer) = 0;
};

/// Self-attention by dynamic bilinear low-rank attention. Parameters carry the paper's names; linear layers are
/// stored as in torch::nn::Linear. With d_h = d/H and e = ceil(d_in/H):
///   form `paper`     w_q, w_k, w_v, w_o (d → d), r (H, d_h, e), f_c, f_r (d → H·d_p)
///   form `released`  p_q, p_k, w_q, w_k (d → H·e), p_v, w_v, w_o (d → d), w_u (d → H·d_p), norm (d)
class DBAttentionImpl : public torch::nn::Cloneable<DBAttentionImpl>, public Attention {
 public:
  DBAttentionImpl(int64_t d, int64_t heads) : DBAttentionImpl(DBAttentionOptions(d, heads)) {}
  explicit DBAttentionImpl(DBAttentionOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  using Attention::forward;
  /// z (d_p, d) or (B, d_p, d): needed unless z_update is `own`, refused if it is.
  AttentionOutput attend(const at::Tensor& x, const Sequences& sequences, const at::Tensor& z,
                         bool need_weights) override;
  bool takes_slots() const override {
    return options.z_update() != ZUpdate::own && options.compress_length();
  }
  /// e, the width of the compressed queries and keys of one head.
  int64_t head_width() const;

  DBAttentionOptions options;
  torch::nn::Linear w_q{nullptr}, w_k{nullptr}, w_v{nullptr}, w_o{nullptr};
  at::Tensor r;                                                              ///< paper, with compress_width
  torch::nn::Linear f_c{nullptr}, f_r{nullptr};                              ///< paper
  torch::nn::Linear p_q{nullptr}, p_k{nullptr}, p_v{nullptr}, w_u{nullptr};  ///< released
  torch::nn::LayerNorm norm{nullptr};                                        ///< released
  torch::nn::LayerNorm z_norm{nullptr};                                      ///< residual_norm, where Z is handed on
  Slots slots{nullptr};                                                      ///< z_update own
};
TORCH_MODULE(DBAttention);

}  // namespace dba

#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>

#include "dba/sequences.h"

namespace dba {

/// `paper`: the equations of the paper, read per head. `released`: the authors' time-series code.
enum class Form { paper, released };
/// How W_r' and W_c' are normalised.
enum class Normalise { softmax, linear };
/// How the slots Z reach the next layer.
///   residual_norm  Z ← LayerNorm(Z + dropout(C))
///   replace        Z ← C
///   fixed          the same learned Z in every layer
///   own            every layer has a learned Z of its own: for a layer that stands alone in somebody's model
enum class ZUpdate { residual_norm, replace, fixed, own };

Form parse_form(const std::string& name);
Normalise parse_normalise(const std::string& name);
ZUpdate parse_z_update(const std::string& name);
std::string to_string(Form form);
std::string to_string(Normalise normalise);
std::string to_string(ZUpdate z_update);

/// The factors of the attention map, for whoever wants to look: padded to the longest sequence n, zero outside it,
/// without dropout. Absent ones are undefined.
struct AttentionWeights {
  at::Tensor w_r;        ///< (B, H, d_p, n) compression of the queries (released: the one compression A)
  at::Tensor w_c;        ///< (B, H, d_p, n) compression of the keys
  at::Tensor p;          ///< (B, H, d_p, d_p) P' between the slots; without length compression or in softmax
                         ///< attention the whole map (B, H, n, n)
  at::Tensor w_c_prime;  ///< (B, H, n, d_p)
  at::Tensor w_r_prime;  ///< (B, H, n, d_p)
};

struct AttentionOutput {
  at::Tensor y;  ///< like x
  at::Tensor z;  ///< the next layer's Z, (d_p, d) or (B, d_p, d); undefined where there is none to hand on
  std::optional<AttentionWeights> weights;
};

/// What every self-attention of the library offers, whatever module it is. Tokens are (N, d) rows or a batch
/// (B, n, d) with N = B·n; the output has the tokens' shape, and rows outside all sequences are zero.
class Attention {
 public:
  virtual ~Attention() = default;

  /// z: the slots, for methods that carry them from layer to layer; else undefined.
  virtual AttentionOutput attend(const at::Tensor& x, const Sequences& sequences, const at::Tensor& z,
                                 bool need_weights) = 0;
  /// Whether `attend` takes slots from outside.
  virtual bool takes_slots() const {
    return false;
  }

  /// Without `sequences`, x is a plain batch (B, n, d).
  AttentionOutput forward(const at::Tensor& x, const std::optional<Sequences>& sequences = std::nullopt,
                          const at::Tensor& z = {}, bool need_weights = false);
};

}  // namespace dba

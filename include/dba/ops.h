#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "dba/sequences.h"

/// The operators of the two streaming passes, as C++ functions over `torch.ops.dba.*`. All are differentiable.
///
/// Sizes: N rows in all, B sequences, width d, H heads, d_p slots per head, L score rows.
/// The accumulation type is float32 for float16 and bfloat16 tokens and the tokens' own type otherwise; every operand
/// but the tokens may be of the tokens' type or of the accumulation type. An undefined tensor means "absent".
/// docs/mathematics.md derives everything here.
namespace dba::ops {

/// Dropout inside the operators. The mask is a function of (seed, offset, site, sequence, slot, token) alone.
struct Dropout {
  double p = 0.0;  ///< probability of dropping, 0 ≤ p < 1
  at::Tensor rng;  ///< (2) int64 on the tokens' device: seed and offset; needed when p > 0
  /// Draws a fresh seed and offset from PyTorch's default generator of `device`.
  static Dropout draw(double p, at::Device device);
};

/// The sites at which a layer drops out; different sites draw different masks.
enum Site : int64_t { kSiteCompress = 0, kSiteCore = 1, kSiteRestore = 2, kSiteResidual = 3, kSiteActivation = 4 };

/// The mask over the keep rate, as used inside the operators: 0 or 1/(1 − p).
/// sequence (P) and first_token (P) are int64; entry [i, t, s] belongs to token first_token[i] + t and slot s of
/// sequence[i]. Returns (P, tokens, slots) in `dtype`.
at::Tensor dropout_mask(const Dropout& dropout, Site site, const at::Tensor& sequence, const at::Tensor& first_token,
                        int64_t tokens, int64_t slots, at::ScalarType dtype);

/// Score rows from slots and a projection: rows_h = scale · z_h W_h (d_p × d), bias_h = scale · z_h b_h.
/// z (d_p, H·w) or (B, d_p, H·w); weight (H·w, d) as in torch::nn::Linear; bias (H·w) or absent.
/// Returns rows (H·d_p, d) or (B, H·d_p, d), and their bias (H·d_p) or (B, H·d_p); undefined where `bias` is absent.
std::pair<at::Tensor, at::Tensor> fold(const at::Tensor& z, const at::Tensor& weight, const at::Tensor& bias,
                                       int64_t heads, double scale);

/// The same for several projections of the same slots in one call, group behind group: rows (G·H·d_p, d) or
/// (B, G·H·d_p, d). `biases`: one for each weight, absent where undefined; an empty list means none. With z (d_p, H·w)
/// the rows of `tail` (T, d) and `tail_bias` (T) may follow as they are, so that all rows lie in one tensor.
/// The bias is undefined where no group and no tail has one; groups without one have zeros.
std::pair<at::Tensor, at::Tensor> fold_stack(const at::Tensor& z, const std::vector<at::Tensor>& weights,
                                             const std::vector<at::Tensor>& biases, const at::Tensor& tail,
                                             const at::Tensor& tail_bias, int64_t heads, double scale);

/// The L score rows of `compress`, in this order: those of each sequence first, then those that all share.
struct ScoreRows {
  at::Tensor each;         ///< (B, L1, d) or absent
  at::Tensor each_bias;    ///< (B, L1) or absent
  at::Tensor shared;       ///< (L2, d) or absent
  at::Tensor shared_bias;  ///< (L2) or absent
  /// The last `linear` of the L rows are divided by the sequence's length instead of passing a softmax.
  int64_t linear = 0;
};

/// What `compress` says of every sequence, in the accumulation type.
struct Summary {
  at::Tensor c;    ///< (B, L, d) weighted sums of the tokens
  at::Tensor r;    ///< (B, L) sums of the weights; 1 for softmax rows without dropout, 0 for an empty sequence
  at::Tensor lse;  ///< (B, L) log-sum-exp of the scores (softmax rows), log of the length (linear rows); −inf if empty
};

/// S = rows · xᵀ + bias over the tokens of each sequence, W = normalise over tokens(S), then dropout;
/// c = W x, r = W 1. x (N, d).
Summary compress(const at::Tensor& x, const Sequences& sequences, const ScoreRows& rows, const Dropout& dropout = {});

/// The summary of a sequence from the summaries of two of its parts: exact, in any order of the parts.
Summary merge(const Summary& a, const Summary& b);

/// The parameters of `core`. Linear layers as in torch::nn::Linear: weight (out, in), bias (out).
/// With `compress_weight` the form is `released`, without it `paper`.
struct CoreWeights {
  at::Tensor query_weight, query_bias;        ///< W_Q (paper) or W_q (released)
  at::Tensor key_weight, key_bias;            ///< W_K or W_k
  at::Tensor value_weight, value_bias;        ///< W_V or W_v
  at::Tensor width;                           ///< R (H, d_h, e), paper only; absent: R = I
  at::Tensor compress_weight, compress_bias;  ///< P_v, released only
  at::Tensor norm_weight, norm_bias;          ///< the LayerNorm of O (d), released only
  at::Tensor out_weight;                      ///< W_O (d_out, d)
  at::Tensor other;                           ///< C of the other stream (B, d_p, d): cross-attention
};

struct CoreResult {
  at::Tensor m;  ///< (B, H·d_p, d_out) what `restore` mixes
  at::Tensor c;  ///< (B, d_p, d) the layer's compressed sequence, handed to the next layer
};

/// Everything between the two passes, on d_p rows: projections, R, softmax over slots, W_O.
/// c and r hold the row groups (W_r, W_c, W_c') in form `paper` (3·H·d_p rows), one group (H·d_p rows) in form
/// `released` and in cross-attention.
CoreResult core(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights, int64_t heads,
                const Dropout& dropout = {});

/// U = normalise over the slots of each head (x rowsᵀ + bias), then dropout; y = U m + out_bias; rows of nobody are 0.
/// x (N, d); rows (H·d_p, d) with bias (H·d_p), or rows (B, H·d_p, d) with bias (B, H·d_p); m (B, H·d_p, d_out);
/// out_bias (d_out). Both biases may be absent. `linear`: U is x rowsᵀ + bias itself. Returns (N, d_out) of x's type.
at::Tensor restore(const at::Tensor& x, const Sequences& sequences, const at::Tensor& rows, const at::Tensor& bias,
                   const at::Tensor& m, const at::Tensor& out_bias, int64_t heads, bool linear = false,
                   const Dropout& dropout = {});

struct AttentionResult {
  at::Tensor y;  ///< (N, d_out)
  at::Tensor c;  ///< (B, d_p, d)
};

/// compress, core and restore as one autograd node: the gradient of x is written once.
AttentionResult attention(const at::Tensor& x, const Sequences& sequences, const ScoreRows& rows,
                          const CoreWeights& weights, const at::Tensor& restore_rows, const at::Tensor& restore_bias,
                          const at::Tensor& out_bias, int64_t heads, bool linear = false, const Dropout& dropout = {});

}  // namespace dba::ops

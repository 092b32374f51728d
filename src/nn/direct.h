#pragma once

#include "dba/nn/attention.h"
#include "dba/ops.h"

/// DBA as its equations are written: project all tokens, form the weights, multiply. On a padded batch, in plain
/// differentiable ATen. The truth about the order of products, and the source of the weights that a user may look at.
namespace dba::direct {

/// The parameters and inputs of one layer, for self- and cross-attention in both forms.
struct Layer {
  at::Tensor x;  ///< (N, d)
  const Sequences& sequences;
  at::Tensor z;                             ///< (d_p, d) or (B, d_p, d); in form `released` after P_q: (…, H·e)
  ops::CoreWeights core;                    ///< projections; `other` in cross-attention
  at::Tensor key_weight, key_bias;          ///< P_k, released only: the projection that scores the tokens
  at::Tensor mix_weight, mix_bias;          ///< F_c, paper self-attention only
  at::Tensor restore_weight, restore_bias;  ///< F_r or W_u
  at::Tensor out_bias;
  int64_t heads;
  bool linear;  ///< normalise W_r' and W_c' linearly
};

struct Result {
  at::Tensor y;              ///< (N, d)
  at::Tensor c;              ///< (B, d_p, d)
  AttentionWeights weights;  ///< with dropout where there was any
};

Result attention(const Layer& layer, const ops::Dropout& dropout);

/// concat_h(A_h (X P)_h) for slots z scored against (X P_k)_h: what a Compressor computes.
at::Tensor compress(const at::Tensor& x, const Sequences& sequences, const at::Tensor& z, const at::Tensor& key_weight,
                    const at::Tensor& key_bias, const at::Tensor& value_weight, const at::Tensor& value_bias,
                    int64_t heads, const ops::Dropout& dropout);

}  // namespace dba::direct

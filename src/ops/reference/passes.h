#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "dba/ops.h"
#include "ops/pieces.h"

/// The streaming passes in plain ATen, tile by tile: the truth that every fused kernel is compared with.
namespace dba::ops::reference {

/// Score rows in the accumulation type, applied to tiles. Restore's rows are score rows too.
class Scorer {
 public:
  Scorer(const ScoreRows& rows, at::ScalarType type);
  int64_t rows() const {
    return each_rows_ + shared_rows_;
  }
  /// (G, T, L) scores of a tile's tokens.
  at::Tensor scores(const Tile& tile) const;
  /// (G, T, d) what a gradient of the scores gives to the tokens.
  at::Tensor token_gradient(const Tile& tile, const at::Tensor& dscores) const;

  at::Tensor each, each_bias, shared, shared_bias;

 private:
  int64_t each_rows_;
  int64_t shared_rows_;
};

/// Sums of score gradients over tiles, for the rows themselves.
class ScorerGradient {
 public:
  explicit ScorerGradient(const Scorer& scorer);
  void add(const Tile& tile, const at::Tensor& dscores);

  at::Tensor each, each_bias, shared, shared_bias;  ///< shaped as in the Scorer; undefined where that is absent
};

/// (G, T, L) weights before dropout: exp(S − shift) for softmax rows, S / length for linear ones; 0 without a token.
/// shift (B, softmax rows or more): lse gives the weights themselves, the largest score weights still to be divided.
at::Tensor compress_weights(const Tile& tile, const at::Tensor& scores, const at::Tensor& shift,
                            const at::Tensor& lengths, int64_t linear);

/// (G, T, H·d_p) weights before dropout.
at::Tensor restore_weights(const at::Tensor& scores, int64_t heads, bool linear);

/// What compress's backward needs besides the tokens.
struct CompressBackward {
  ScoreRows rows;
  Dropout dropout;
  Summary summary;
  at::Tensor dc, dr, dlse;  ///< absent: zero
};

/// What restore's backward needs besides the tokens.
struct RestoreBackward {
  ScoreRows rows;  ///< either `each` or `shared`
  at::Tensor m;
  int64_t heads;
  bool linear;
  Dropout dropout;
  at::Tensor dy;
};

struct TokenGradients {
  at::Tensor dx;
  at::Tensor each, each_bias, shared, shared_bias;  ///< of compress's rows
  at::Tensor restore_rows, restore_bias;
};

/// Pass 2 of the backward: one sweep over the tokens for either or both operators; dx is written once.
TokenGradients token_pass(const at::Tensor& x, const Sequences& sequences,
                          const std::optional<CompressBackward>& compress,
                          const std::optional<RestoreBackward>& restore);

/// Pass 1 of the backward: dm (B, H·d_p, d_out) and dout_bias (d_out), in the accumulation type.
std::pair<at::Tensor, at::Tensor> slot_pass(const at::Tensor& x, const Sequences& sequences,
                                            const RestoreBackward& restore);

/// The rows of restore, shared or per sequence, as score rows.
ScoreRows restore_score_rows(const at::Tensor& rows, const at::Tensor& bias);

}  // namespace dba::ops::reference

#pragma once

#include <ATen/core/Tensor.h>

#include "dba/ops.h"

namespace dba::ops {

/// Some pieces, with their tokens gathered. G pieces of T tokens; tokens past a sequence's end are zero.
struct Tile {
  at::Tensor x;            ///< (G, T, d) in the accumulation type
  at::Tensor valid;        ///< (G, T, 1) bool
  at::Tensor row;          ///< (G·T) row of each token; N for tokens that do not exist
  at::Tensor sequence;     ///< (G)
  at::Tensor first_token;  ///< (G) index of the piece's first token inside its sequence
  int64_t first_piece;
};

/// The sequences of a batch cut into pieces of T tokens, so that plain batched products work on packed rows of any
/// lengths. On the CPU there are exactly as many pieces as needed; elsewhere their number is bounded from shapes alone
/// (every sequence wastes less than one piece: N/T + B), so that nothing waits for the device.
/// Pieces are handled in groups small enough that a tile of scores is never as long as a long sequence.
class Pieces {
 public:
  /// `width`: floats a token needs in a tile, the larger of d and the number of score rows.
  Pieces(const Sequences& sequences, int64_t width);

  int64_t piece_length() const {
    return piece_length_;
  }
  int64_t count() const {
    return sequence_.size(0);
  }
  int64_t groups() const {
    return (count() + pieces_per_group_ - 1) / pieces_per_group_;
  }
  /// (P) the sequence of each piece.
  const at::Tensor& sequence() const {
    return sequence_;
  }
  Tile tile(int64_t group, const at::Tensor& x) const;
  /// The rows of another (N, ·) tensor that belong to `tile`, (G, T, ·) in `type`, zero where there is no token.
  at::Tensor gather(const Tile& tile, const at::Tensor& rows, at::ScalarType type) const;

 private:
  int64_t rows_;
  int64_t piece_length_;
  int64_t pieces_per_group_;
  at::Tensor sequence_;     // (P)
  at::Tensor first_token_;  // (P)
  at::Tensor row_;          // (P, T)
  at::Tensor valid_;        // (P, T)
};

/// An (N, ·) tensor filled tile by tile; rows that no tile writes are zero.
class TokenRows {
 public:
  TokenRows(const at::Tensor& like, int64_t width);
  void write(const Tile& tile, const at::Tensor& values);
  at::Tensor rows() const;

 private:
  at::Tensor storage_;  // (N + 1, ·): the last row takes what belongs to no token
};

/// The mask of a tile over the keep rate, (G, T, slots).
at::Tensor tile_mask(const Dropout& dropout, Site site, const Tile& tile, int64_t slots);

}  // namespace dba::ops

#pragma once

#include <torch/types.h>

#include <array>
#include <vector>

#include "dba/ops.h"

namespace dba {

/// The score of a key that is not seen: the lowest of a type. A softmax gives it nothing where there are others, and a
/// row without any stays finite.
double low_score(at::ScalarType type);

/// Keys and values that blocks of queries see, and where: keys (B, H, blocks or 1, m, w), values likewise, mask
/// spreading to (B, H, blocks, size, m), or undefined where all is seen.
struct Seen {
  at::Tensor keys, values, mask;
};

/// Learned numbers on top of the scores: weight · scores, a number and (B or 1, H or 1, blocks or 1, size, all keys);
/// undefined where there are none.
struct AddedScores {
  at::Tensor scores, weight;
};

/// Softmax attention of queries (B, H, blocks, size, w) to the union of what they see, with the scale 1/√w; dropout, a
/// rate, acts on the map. A query that sees nothing gets a finite row. The map exists for some queries at a time, and
/// again for their gradients: neither pass keeps it. With one part there are second derivatives too.
at::Tensor transient_map_attention(const at::Tensor& queries, const std::vector<Seen>& seen, double dropout);
/// The same with numbers added to the scores, which get gradients too.
at::Tensor transient_map_attention(const at::Tensor& queries, const std::vector<Seen>& seen, const AddedScores& added,
                                   double dropout);

/// Refuses a backward pass of `name` that is to be differentiated again.
void check_first_derivative(const char* name);

/// A part of a map: some sequences, heads, blocks, and queries of a block.
struct MapPiece {
  std::array<int64_t, 4> first, count;

  /// What of x (B, H, blocks, size, …), of which the first `axes` are given, belongs to it; extents of 1 are shared.
  at::Tensor of(const at::Tensor& x, size_t axes) const;
  /// The dropout's mask over the keep rate for so many keys, (b, h, g, q, keys): a function of the place in the map of
  /// `sizes` and of `rng`, as dba::ops::Dropout has it.
  at::Tensor dropout_mask(const std::array<int64_t, 4>& sizes, int64_t keys, double dropout, const at::Tensor& rng,
                          at::ScalarType type) const;
};

/// The pieces of a map of B, H, blocks and size, with so many keys for every query: of a cache's size, or enough to
/// keep a GPU busy.
std::vector<MapPiece> map_pieces(const std::array<int64_t, 4>& sizes, int64_t keys, at::Device device);

}  // namespace dba

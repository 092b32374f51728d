#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dba::ops::cpu {

/// Tokens of a tile at most. A multiple of four: dropout draws tokens four at a time.
constexpr int64_t kTile = 96;

/// A run of tokens of one sequence.
struct Segment {
  int64_t sequence;
  int64_t first_row;    ///< among the N rows
  int64_t first_token;  ///< inside the sequence; a multiple of the tile
  int64_t tokens;
  int64_t length;  ///< of the sequence
  int64_t part;    ///< which part of a split sequence this is, counted over all split sequences; −1: the whole one

  /// Tokens of its tiles, like in size, so that no small one is left over; a multiple of four.
  int64_t tile() const {
    const auto tiles = (tokens + kTile - 1) / kTile;
    return tokens == 0 ? kTile : ((tokens + tiles - 1) / tiles + 3) / 4 * 4;
  }
};

/// A sequence whose sums are merged from parts.
struct Split {
  int64_t sequence;
  int64_t first_part;
  int64_t parts;
};

/// How the tokens of a batch are cut into units of work: short sequences share a unit, long ones have several. The cut
/// depends on the lengths alone, sums of units and parts are merged in order, and so results do not depend on the
/// number of threads.
struct WorkPlan {
  /// `sums_per_unit`: numbers that a unit may have to keep until all are done; bounds the number of units.
  WorkPlan(const at::Tensor& begin, const at::Tensor& end, int64_t sums_per_unit);

  int64_t units() const {
    return static_cast<int64_t>(first_segment.size()) - 1;
  }

  std::vector<Segment> segments;
  std::vector<int64_t> first_segment;  ///< of each unit, and the end
  std::vector<Split> splits;
  std::vector<int64_t> empty;  ///< sequences without tokens
  int64_t parts = 0;
  std::vector<int64_t> begin, end;
};

}  // namespace dba::ops::cpu

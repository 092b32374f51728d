#pragma once

#include <algorithm>
#include <cstdint>

namespace dba::ops::cpu {

/// Beside its tokens a sequence has a core, which weighs about as much as this many more.
constexpr int64_t kTokensOfCore = 32;

/// Rows of the core in a stack of sequences that goes through the whole layer while it is in cache.
constexpr int64_t kRowsOfStack = 32;

/// What a forward keeps for its backward at most, whatever the batch.
constexpr int64_t kMostKeptBytes = int64_t{1} << 24;

/// How many units of work so many tokens are cut into: one where they are few; else two, or multiples of four that find
/// the same work for one, two or four threads. `sums_per_unit`: numbers that a unit may have to keep until all are
/// done; bounds the number of units.
constexpr int64_t unit_count(int64_t tokens, int64_t sums_per_unit) {
  // Enough tokens that starting a unit and merging its sums cost little.
  constexpr int64_t kFewTokens = 512;
  constexpr int64_t kManyTokens = 1024;
  constexpr int64_t kMostUnits = 64;
  constexpr int64_t kMostSums = int64_t{1} << 23;  // 32 MB of float32
  if (tokens < kManyTokens) {
    return tokens < kFewTokens ? 1 : 2;
  }
  const auto most = std::clamp<int64_t>(kMostSums / std::max<int64_t>(sums_per_unit, 1), 4, kMostUnits);
  return std::clamp<int64_t>((tokens + 2 * kManyTokens) / (4 * kManyTokens), 1, most / 4) * 4;
}

/// Into how many parts a sequence is split where a unit should weigh `unit`; one: not at all.
constexpr int64_t part_count(int64_t length, int64_t unit) {
  return 4 * length < 5 * unit ? 1 : (length + unit - 1) / unit;
}

}  // namespace dba::ops::cpu

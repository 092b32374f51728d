#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "allocation_watch.h"
#include "dba/bytes/errors.h"
#include "mutation.h"

namespace dba::bytes {

/// A reader under test. A further reader gets its own test_fuzz_<format>.cc with such a target.
struct FuzzTarget {
  std::vector<Bytes> files;  ///< sound ones, as unlike each other as the format allows
  /// Reads a file and checks, with the macros of gtest, that what came out hangs together; or throws FormatError.
  std::function<void(const Bytes& file)> read;
  /// Puts right what would stop a damaged file at the door (a length, a checksum), so that the damage reaches the
  /// parser behind it. May be empty.
  std::function<void(const Bytes& original, Bytes& damaged)> repair;
};

struct FuzzCounts {
  std::size_t accepted = 0;
  std::size_t refused = 0;
};

/// Reads so many damaged files. Any exception but FormatError and any request for more than largest_request bytes at
/// once is a failure, which names the seed and iteration that bring it back.
inline FuzzCounts fuzz(const FuzzTarget& target, std::uint64_t seed, std::size_t iterations,
                       std::size_t largest_request) {
  Mutator mutator(seed);
  FuzzCounts counts;
  for (std::size_t i = 0; i < iterations; ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", iteration " + std::to_string(i));
    const Bytes& original = mutator.pick(target.files);
    Bytes damaged = mutator.mutate(original, mutator.pick(target.files));
    if (target.repair && mutator.below(4) != 0)
      target.repair(original, damaged);
    damaged.shrink_to_fit();
    largest_allocation = 0;
    try {
      target.read(damaged);
      ++counts.accepted;
    } catch (const FormatError&) {
      ++counts.refused;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "an exception other than FormatError: " << error.what();
    }
    EXPECT_LE(largest_allocation.load(), largest_request) << "for a file of " << damaged.size() << " bytes";
    if (testing::Test::HasFailure())
      break;
  }
  return counts;
}

}  // namespace dba::bytes

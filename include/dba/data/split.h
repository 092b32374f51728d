#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dba::data {

struct Split {
  std::vector<std::size_t> kept;      ///< ascending
  std::vector<std::size_t> held_out;  ///< ascending
};

/// Holds out about fraction × labels.size() examples, each class in proportion (largest remainders decide), chosen by
/// (seed, index) alone. A class of two or more examples has at least one on either side; one of a single example is
/// kept. Throws std::invalid_argument for a fraction outside (0, 1) and for negative labels.
Split hold_out(std::span<const std::int32_t> labels, double fraction, std::uint64_t seed);

}  // namespace dba::data

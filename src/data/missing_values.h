#pragma once

#include <cstddef>
#include <span>

namespace dba::data {

/// Puts numbers in the place of NaN in steps × channels values: on the line between the neighbours in time, or the
/// nearest value at either end. Returns how many channels had no value at all and are now 0.
std::size_t fill_missing(std::span<float> values, std::size_t channels);

}  // namespace dba::data

#pragma once

#include <cstddef>
#include <span>

namespace dba::data {

/// Puts numbers in the place of NaN in steps × channels values: on the line between the neighbours in time, or the
/// nearest value at either end. A channel without any value stays NaN: what stands for it, the mean of the training
/// part, is not known yet. Returns how many such there are.
std::size_t fill_missing(std::span<float> values, std::size_t channels);

}  // namespace dba::data

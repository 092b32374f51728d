#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace dba::data {

inline constexpr std::size_t kMin = 0;
inline constexpr std::size_t kMax = 1;
inline constexpr std::size_t kMedian = 2;
inline constexpr std::size_t kSumModulo = 3;
/// As the files spell them.
inline constexpr std::array<std::string_view, 4> kOperators = {"[MIN", "[MAX", "[MED", "[SM"};

/// The value of an operator on digits, of which there is at least one; may change their order.
int apply_operator(std::size_t number, std::span<std::uint8_t> arguments);

}  // namespace dba::data

#pragma once

#include <concepts>
#include <string>

namespace dba::bytes {

/// A count and what it counts, fit for a message: "1 channel", "3 channels". many: the plural where an s does not make
/// it, as in counted(n, "class", "classes").
template <std::integral Count>
std::string counted(Count count, const std::string& one, const std::string& many = "") {
  return std::to_string(count) + " " + (count == 1 ? one : many.empty() ? one + "s" : many);
}

}  // namespace dba::bytes

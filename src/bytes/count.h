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

/// 16384 → "16,384".
template <std::integral Number>
std::string with_commas(Number number) {
  constexpr std::size_t kDigits = 3;
  const auto digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % kDigits == 0)
      text += ',';
    text += digits[i];
  }
  return text;
}

}  // namespace dba::bytes

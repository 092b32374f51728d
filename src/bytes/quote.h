#pragma once

#include <string>
#include <string_view>

namespace dba::bytes {

/// The whole text in double quotes: control characters as \xNN, quotes and backslashes escaped. Bytes above 0x7f stand
/// for themselves, valid UTF-8 or not.
inline std::string double_quoted(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      if (c == '"' || c == '\\')
        result += '\\';
      result += c;
    }
  }
  return result + "\"";
}

}  // namespace dba::bytes

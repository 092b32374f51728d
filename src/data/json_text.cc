#include "dba/data/json_text.h"

#include <cstddef>

namespace dba::data {
namespace {

constexpr char kHex[] = "0123456789abcdef";

// Bytes of the UTF-8 character at the start of the text; 0 where there is none.
std::size_t character_length(std::string_view text) {
  const auto byte = [text](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto continues = [&byte](std::size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const unsigned first = byte(0);
  if (first < 0x80)
    return 1;
  if (first >= 0xc2 && first <= 0xdf)
    return continues(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    // No overlong forms, no surrogates.
    const bool allowed = (first != 0xe0 || byte(1) >= 0xa0) && (first != 0xed || byte(1) < 0xa0);
    return allowed && continues(1) && continues(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const bool allowed = (first != 0xf0 || byte(1) >= 0x90) && (first != 0xf4 || byte(1) < 0x90);
    return allowed && continues(1) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string json_quoted(std::string_view bytes) {
  std::string text = "\"";
  while (!bytes.empty()) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    const std::size_t length = character_length(bytes);
    if (length == 0) {
      text += {'\\', 'u', 'd', 'c', kHex[byte >> 4], kHex[byte & 15]};
    } else if (byte < 0x20 || byte == 0x7f) {
      text += {'\\', 'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      if (byte == '"' || byte == '\\')
        text += '\\';
      text += bytes.substr(0, length);
    }
    bytes.remove_prefix(length == 0 ? 1 : length);
  }
  return text + '"';
}

bool is_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t length = character_length(bytes);
    if (length == 0)
      return false;
    bytes.remove_prefix(length);
  }
  return true;
}

}  // namespace dba::data

#include "dba/bytes/errors.h"

#include <cstddef>
#include <system_error>

namespace dba::bytes {

FileError::FileError(const std::string& action, const std::filesystem::path& path, int error)
    : std::runtime_error("cannot " + action + " " + path.string() + ": " + std::generic_category().message(error)),
      error_(error) {}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 96;
  constexpr char kHex[] = "0123456789abcdef";
  const bool cut = text.size() > kLongest;
  if (cut) {
    std::size_t length = kLongest;
    // A UTF-8 continuation byte is 10xxxxxx: step back to the start of its character.
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80)
      --length;
    text = text.substr(0, length);
  }
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
  return result + (cut ? "…\"" : "\"");
}

}  // namespace dba::bytes

#include "dba/bytes/errors.h"

#include <cstddef>
#include <system_error>

#include "bytes/quote.h"

namespace dba::bytes {

FileError::FileError(const std::string& action, const std::filesystem::path& path, int error)
    : std::runtime_error("cannot " + action + " " + path.string() + ": " + std::generic_category().message(error)),
      error_(error) {}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 96;
  const bool cut = text.size() > kLongest;
  if (cut) {
    std::size_t length = kLongest;
    // A UTF-8 continuation byte is 10xxxxxx: step back to the start of its character.
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80)
      --length;
    text = text.substr(0, length);
  }
  auto result = double_quoted(text);
  if (cut)
    result.insert(result.size() - 1, "…");
  return result;
}

}  // namespace dba::bytes

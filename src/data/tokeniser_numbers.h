#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dba::data {

/// Numbers of scheme integer are below it: CLS and EOS come after them and fit 32 bits too.
inline constexpr std::size_t kMostIntegers = 0x7ffffff0;

/// A decimal number of scheme integer. Throws bytes::FormatError, which begins with `place`.
std::int64_t parse_token_number(std::string_view word, const std::string& place);

}  // namespace dba::data

#pragma once

#include <string>
#include <string_view>

namespace dba::data {

/// A JSON string, quotes included, for any bytes. What is not UTF-8 is written as \udc80 … \udcff, one escape a byte:
/// the convention of Python's `surrogateescape`, which the readers of this library undo.
std::string json_quoted(std::string_view bytes);

bool is_utf8(std::string_view bytes);

}  // namespace dba::data

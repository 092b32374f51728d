#pragma once

#include <string>

namespace dba::cli {

/// What an option that names a file holds where it was given without one.
inline constexpr const char* kStandardOutput = "-";

/// To standard output, or to a file, whole or not at all.
void write_text(const std::string& file, const std::string& text);

}  // namespace dba::cli

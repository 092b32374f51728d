#pragma once

#include <string>
#include <string_view>

namespace dba::data {

/// Reads the value of a series that stands at `at`, blanks before it passed over. A missing one, "?" or NaN in any
/// case, is NaN; what is too small for a 32-bit float is 0. Returns where it ends, or null where there is no value that
/// a series can hold: `value_fault` says why.
const char* read_value(const char* at, const char* end, float& value);

/// Why a field, without the separators around it, is no value, and what to do about it: "expected a number, found
/// \"abc\"; …". remedy: what is known of such words at that place, beginning with "; ".
std::string value_fault(std::string_view field, const std::string& remedy = "");

/// Without the blanks (space, tab, carriage return) at either end.
std::string_view trimmed(std::string_view text);

}  // namespace dba::data

#include "series_value.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

#include "dba/bytes/errors.h"

namespace dba::data {
namespace {

constexpr std::string_view kBlanks = " \t\r";

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

// Behind a plus, which the parser does not know.
const char* past_plus(const char* at, const char* end) {
  return *at == '+' && end - at > 1 && at[1] != '-' ? at + 1 : at;
}

// A number that the float parser calls out of range. Too small is 0: the double says so, or, beyond its range as well,
// a negative exponent or digits behind "0." only.
bool read_extreme(std::string_view text, float& value) {
  double wide = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), wide).ec == std::errc()) {
    value = static_cast<float>(wide);
    return std::abs(wide) <= static_cast<double>(std::numeric_limits<float>::max());
  }
  const std::size_t exponent = text.find_first_of("eE");
  const bool negative_exponent = exponent != text.npos && text.substr(exponent + 1).starts_with('-');
  const bool below_one = text.starts_with("0.") || text.starts_with("-0.");
  value = 0;
  return negative_exponent || (below_one && exponent == text.npos);
}

}  // namespace

const char* read_value(const char* at, const char* end, float& value) {
  while (at != end && is_blank(*at))
    ++at;
  if (at == end)
    return nullptr;
  if (*at == '?') {
    value = std::numeric_limits<float>::quiet_NaN();
    return at + 1;
  }
  at = past_plus(at, end);
  const auto [stopped, error] = std::from_chars(at, end, value);
  if (error == std::errc())
    return std::isinf(value) ? nullptr : stopped;
  if (error == std::errc::result_out_of_range && read_extreme({at, static_cast<std::size_t>(stopped - at)}, value))
    return stopped;
  return nullptr;
}

std::string value_fault(std::string_view field, const std::string& remedy) {
  const std::string_view text = trimmed(field);
  if (text.empty())
    return "there is no value; a missing one is written as ?";
  if (text.starts_with('('))
    return "time stamps such as " + bytes::in_quotes(text.substr(0, 12)) +
           " are not read; bring the series to equal time steps and write their values alone, with @timeStamps false";
  float value = 0;
  double wide = 0;
  const char* const end = text.data() + text.size();
  const char* const begin = past_plus(text.data(), end);
  const auto narrow = std::from_chars(begin, end, value);
  if (narrow.ptr != end || narrow.ec == std::errc::invalid_argument)
    return "expected a number, found " + bytes::in_quotes(text) +
           (remedy.empty() ? "; write one, or ? for a missing value" : remedy);
  std::from_chars(begin, end, wide);
  if (std::isinf(value) || std::isinf(wide))
    return "the value " + bytes::in_quotes(text) + " is infinite; a missing one is written as ?";
  return "the value " + bytes::in_quotes(text) +
         " is too large for a 32-bit float; scale the channel, or write ? for "
         "a missing value";
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == text.npos)
    return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace dba::data

#pragma once

#include <CLI/CLI.hpp>

#include <charconv>
#include <string>

namespace dba::cli {

/// CLI11's own checks answer with a range that ends at the largest double, written out.
inline CLI::Validator number_check(const char* shown, const char* expected, bool (*holds)(double)) {
  return CLI::Validator(
      [expected, holds](const std::string& text) {
        double value = 0;
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, value);
        const bool number = error == std::errc() && rest == end;
        return number && holds(value) ? std::string() : "must be " + std::string(expected) + ", got " + text;
      },
      shown);
}

inline const CLI::Validator kPositive = number_check("POSITIVE", "more than 0", [](double value) { return value > 0; });
inline const CLI::Validator kNotNegative =
    number_check("NONNEGATIVE", "0 or more", [](double value) { return value >= 0; });

}  // namespace dba::cli

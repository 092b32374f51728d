#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dba::data {

/// What a model sees of a data set. The same for all of its examples.
enum class Kind : std::uint8_t {
  tokens,  ///< one sequence of symbols
  pairs,   ///< two sequences of symbols
  series,  ///< real numbers, so many channels at every time step
};

/// What a file holds, before a tokeniser has turned it into numbers.
enum class Content : std::uint8_t {
  text,      ///< bytes
  pair,      ///< bytes twice
  integers,  ///< token numbers or pixels
  series,
};

/// "tokens", "pairs", "series".
std::string_view name_of(Kind kind);
/// "text", "a pair of texts", "integers", "a series".
std::string_view name_of(Content content);
/// Nothing for an unknown name.
std::optional<Kind> parse_kind(std::string_view name);
Kind kind_of(Content content);

/// One record as a reader hands it out. Only the fields that its content names are filled.
struct Example {
  Content content = Content::text;
  std::string text;                    ///< text; the first of a pair
  std::string second;                  ///< the second of a pair
  std::vector<std::int32_t> integers;  ///< none negative
  std::vector<float> values;           ///< of a series, time-major: steps × channels
  std::size_t channels = 0;            ///< of a series
  std::optional<std::string> label;

  /// Empties it and keeps the memory.
  void clear();
};

}  // namespace dba::data

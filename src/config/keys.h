#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dba/config/train_config.h"

namespace dba::config {

/// Where in a configuration a value lives.
template <typename T>
using Place = T& (*)(TrainConfig&);

struct Flag {
  Place<bool> place;
};
struct Integer {
  Place<std::int64_t> place;
  std::int64_t least;
  std::int64_t most;  ///< kNoLimit: none is told
};
/// Finite numbers from least to most; the ends belong to the range unless they are said to be open.
struct Range {
  double least;
  double most;  ///< infinity: none is told
  bool least_open = false;
  bool most_open = false;
};
struct Number {
  Place<double> place;
  Range range;
};
struct NumberPair {
  Place<std::array<double, 2>> place;
  Range range;
};
/// Increasing integers.
struct Integers {
  Place<std::vector<std::int64_t>> place;
  std::int64_t least;
};
struct Choice {
  Place<std::string> place;
  std::vector<std::string_view> names;
};
struct Text {
  Place<std::string> place;
};

using Kind = std::variant<Flag, Integer, Number, NumberPair, Integers, Choice, Text>;

struct Key {
  std::string_view name;  ///< "seed" or "model.d"
  Kind kind;
  std::string_view documentation;

  /// "model", or nothing.
  std::string_view section() const;
  /// "d".
  std::string_view last_name() const;
};

struct Section {
  std::string_view name;
  std::string_view documentation;
};

inline constexpr std::int64_t kNoLimit = INT64_MAX;

/// All keys, those of a section together, in the order in which they are shown.
std::span<const Key> keys();
/// The sections in the same order; the keys that belong to none come first, as the section "".
std::span<const Section> sections();

/// Null if there is none of that name.
const Key* find_key(std::string_view name);
const Section* find_section(std::string_view name);

/// The one of `known`, which is not empty, that is the least number of edits away, whatever the letters' case.
std::string nearest_of(std::string_view name, std::span<const std::string> known);

/// The known key or section whose name is the least number of edits away, whatever the letters' case.
std::string nearest_name(std::string_view name);

}  // namespace dba::config

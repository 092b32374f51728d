#include <algorithm>
#include <numeric>
#include <utility>

#include "keys.h"

namespace dba::config {
namespace {

char lower(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

// Levenshtein's: insertions, deletions and replacements that turn a into b; a letter's case is none.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (lower(a[i]) == lower(b[j]) ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row[b.size()];
}

// Beyond that nothing is near, and hostile names are long.
constexpr std::size_t kLongest = 64;

std::string_view last_part(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

}  // namespace

std::string nearest_name(std::string_view name) {
  name = name.substr(0, kLongest);
  std::string_view nearest;
  std::size_t least = SIZE_MAX;
  const auto consider = [&](std::string_view known) {
    // A key in the wrong section, or in none, is one mistake, however long the section's name.
    const std::size_t distance = std::min(edits(name, known), edits(last_part(name), last_part(known)) + 1);
    if (distance < least) {
      least = distance;
      nearest = known;
    }
  };
  for (const Key& key : keys())
    consider(key.name);
  for (const Section& section : sections())
    if (!section.name.empty())
      consider(section.name);
  return std::string(nearest);
}

std::string nearest_of(std::string_view name, std::span<const std::string> known) {
  name = name.substr(0, kLongest);
  // Who wrote the beginning of a name and no more made one mistake.
  const auto mistakes = [&](const std::string& one) {
    const bool begun = !name.empty() && name.size() < one.size() && edits(name, one.substr(0, name.size())) == 0;
    return begun ? std::size_t{1} : edits(name, one);
  };
  return *std::ranges::min_element(known, {}, mistakes);
}

}  // namespace dba::config

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dba::data {

/// The classes, numbered in order: by value where every label is an integer, otherwise by bytes.
class LabelSet {
 public:
  LabelSet() = default;
  /// Any order; the same label twice counts once.
  explicit LabelSet(std::vector<std::string> labels);

  std::size_t size() const {
    return names_.size();
  }
  /// Of class `number`, which must be below size().
  const std::string& name(std::size_t number) const {
    return names_.at(number);
  }
  const std::vector<std::string>& names() const {
    return names_;
  }
  std::optional<std::int32_t> find(std::string_view label) const;
  /// The number of a label met at `place` ("data.jsonl:12"). Throws bytes::FormatError, which names the label and the
  /// known ones, where there is none.
  std::int32_t number_of(std::string_view label, const std::string& place) const;

  /// A JSON array of strings, in the order of the numbers.
  std::string to_json() const;
  /// Throws bytes::FormatError, which names the source.
  static LabelSet from_json(std::string_view text, const std::string& source);

  bool operator==(const LabelSet& other) const {
    return names_ == other.names_;
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::int32_t, std::less<>> numbers_;
};

}  // namespace dba::data

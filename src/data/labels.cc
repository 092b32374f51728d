#include "dba/data/labels.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "dba/bytes/errors.h"
#include "dba/data/json_text.h"
#include "json_scanner.h"
#include "quoted_list.h"

namespace dba::data {
namespace {

std::optional<std::int64_t> as_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{} || result.ptr != text.data() + text.size())
    return std::nullopt;
  return value;
}

// Integers that are written alike only when equal: "1" and "01" are two labels and leave the order to the bytes.
bool all_integers(const std::vector<std::string>& labels) {
  return std::ranges::all_of(labels, [](const std::string& label) {
    const auto value = as_integer(label);
    return value && std::to_string(*value) == label;
  });
}

}  // namespace

LabelSet::LabelSet(std::vector<std::string> labels) : names_(std::move(labels)) {
  if (all_integers(names_))
    std::ranges::sort(names_, {}, [](const std::string& label) { return *as_integer(label); });
  else
    std::ranges::sort(names_);
  names_.erase(std::unique(names_.begin(), names_.end()), names_.end());
  for (std::size_t i = 0; i < names_.size(); ++i)
    numbers_.emplace(names_[i], static_cast<std::int32_t>(i));
}

std::optional<std::int32_t> LabelSet::find(std::string_view label) const {
  const auto found = numbers_.find(label);
  if (found == numbers_.end())
    return std::nullopt;
  return found->second;
}

std::int32_t LabelSet::number_of(std::string_view label, const std::string& place) const {
  if (const auto number = find(label))
    return *number;
  constexpr std::size_t kMostNamed = 12;
  throw bytes::FormatError(place + ": the label " + bytes::in_quotes(label) +
                           " does not occur in the training part, whose labels are " + quoted_list(names_, kMostNamed) +
                           "; correct the label or train with examples of it");
}

std::string LabelSet::to_json() const {
  std::string text = "[";
  for (std::size_t i = 0; i < names_.size(); ++i)
    text += (i > 0 ? "," : "") + json_quoted(names_[i]);
  return text + "]";
}

LabelSet LabelSet::from_json(std::string_view text, const std::string& source) {
  JsonScanner scanner(text);
  std::vector<std::string> names;
  try {
    names = scanner.strings();
    scanner.expect_end();
  } catch (const JsonError& error) {
    throw bytes::FormatError(source + ": labels: " + error.what());
  }
  LabelSet labels(names);
  if (labels.names() != names)
    throw bytes::FormatError(source + ": labels: out of order or one twice");
  return labels;
}

}  // namespace dba::data

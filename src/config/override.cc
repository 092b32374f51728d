#include <stdexcept>

#include "dba/bytes/errors.h"
#include "dba/config/config_file.h"
#include "value.h"

namespace dba::config {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos)
    return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

Value split_list(std::string_view text) {
  text = trimmed(text);
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']')
    text = trimmed(text.substr(1, text.size() - 2));
  Value value{Value::Shape::list, {}, false};
  while (!text.empty()) {
    const auto comma = text.find(',');
    value.items.emplace_back(trimmed(text.substr(0, comma)));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return value;
}

Value value_for(const Key& key, std::string_view text) {
  if (std::holds_alternative<NumberPair>(key.kind) || std::holds_alternative<Integers>(key.kind))
    return split_list(text);
  const bool verbatim = std::holds_alternative<Text>(key.kind);
  return {Value::Shape::scalar, {std::string(verbatim ? text : trimmed(text))}, false};
}

}  // namespace

void apply_override(TrainConfig& config, std::string_view assignment) {
  const auto equals = assignment.find('=');
  if (equals == std::string_view::npos) {
    throw std::invalid_argument("--set " + bytes::in_quotes(assignment) +
                                ": expected key=value, as in --set model.d=64");
  }
  const std::string_view name = trimmed(assignment.substr(0, equals));
  const Key* const key = find_key(name);
  if (!key) {
    if (find_section(name)) {
      throw std::invalid_argument("--set " + bytes::in_quotes(assignment) + ": " + std::string(name) +
                                  " is a section; name one of its keys");
    }
    throw std::invalid_argument("--set " + bytes::in_quotes(assignment) + ": unknown key " + bytes::in_quotes(name) +
                                "; the nearest known one is " + bytes::in_quotes(nearest_name(name)));
  }
  if (const auto error = assign(config, *key, value_for(*key, assignment.substr(equals + 1))))
    throw std::invalid_argument("--set " + *error);
}

}  // namespace dba::config

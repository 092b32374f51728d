#include "value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "bytes/listed.h"
#include "bytes/quote.h"
#include "dba/bytes/errors.h"

namespace dba::config {
namespace {

using bytes::in_quotes;

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};

std::string shortest(double number) {
  char text[32];
  const auto end = std::to_chars(std::begin(text), std::end(text), number).ptr;
  return {text, end};
}

std::string range_text(const Range& range) {
  std::string text = (range.least_open ? "above " : "at least ") + shortest(range.least);
  if (!std::isinf(range.most))
    text += (range.most_open ? " and below " : " and at most ") + shortest(range.most);
  return text;
}

// YAML writes a sign where C++ reads none.
std::string_view without_plus(std::string_view text) {
  const bool plus = text.size() > 1 && text[0] == '+' && text[1] != '-';
  return text.substr(plus ? 1 : 0);
}

template <typename T>
std::optional<T> parse(std::string_view text) {
  text = without_plus(text);
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    return std::nullopt;
  return number;
}

std::optional<double> parse_number(std::string_view text, const Range& range) {
  const auto number = parse<double>(text);
  if (!number || !std::isfinite(*number) || *number < range.least || *number > range.most ||
      (range.least_open && *number == range.least) || (range.most_open && *number == range.most))
    return std::nullopt;
  return number;
}

std::string what_came(const Value& value) {
  switch (value.shape) {
    case Value::Shape::nothing:
      return "nothing";
    case Value::Shape::scalar:
      return (value.quoted ? "the text " : "") + in_quotes(value.items.front());
    case Value::Shape::list:
      break;
  }
  return "the list " + in_quotes("[" + bytes::listed(value.items) + "]");
}

// Each takes what it can read and returns whether it could.

bool take(TrainConfig& config, const Flag& flag, const Value& value) {
  if (value.shape != Value::Shape::scalar || value.quoted)
    return false;
  const std::string& text = value.items.front();
  if (text != "true" && text != "false")
    return false;
  flag.place(config) = text == "true";
  return true;
}

bool take(TrainConfig& config, const Integer& integer, const Value& value) {
  if (value.shape != Value::Shape::scalar || value.quoted)
    return false;
  const auto number = parse<std::int64_t>(value.items.front());
  if (!number || *number < integer.least || *number > integer.most)
    return false;
  integer.place(config) = *number;
  return true;
}

bool take(TrainConfig& config, const Number& kind, const Value& value) {
  if (value.shape != Value::Shape::scalar || value.quoted)
    return false;
  const auto number = parse_number(value.items.front(), kind.range);
  if (number)
    kind.place(config) = *number;
  return number.has_value();
}

bool take(TrainConfig& config, const NumberPair& pair, const Value& value) {
  if (value.shape != Value::Shape::list || value.quoted || value.items.size() != 2)
    return false;
  const auto first = parse_number(value.items[0], pair.range);
  const auto second = parse_number(value.items[1], pair.range);
  if (!first || !second)
    return false;
  pair.place(config) = {*first, *second};
  return true;
}

bool take(TrainConfig& config, const Integers& kind, const Value& value) {
  if (value.shape != Value::Shape::list || value.quoted)
    return false;
  std::vector<std::int64_t> numbers;
  for (const std::string& item : value.items) {
    const auto number = parse<std::int64_t>(item);
    if (!number || *number < kind.least || (!numbers.empty() && *number <= numbers.back()))
      return false;
    numbers.push_back(*number);
  }
  kind.place(config) = std::move(numbers);
  return true;
}

bool take(TrainConfig& config, const Choice& choice, const Value& value) {
  if (value.shape != Value::Shape::scalar || std::ranges::find(choice.names, value.items.front()) == choice.names.end())
    return false;
  choice.place(config) = value.items.front();
  return true;
}

bool take(TrainConfig& config, const Text& text, const Value& value) {
  if (value.shape == Value::Shape::list)
    return false;
  // No path and no column holds a zero byte.
  if (value.shape == Value::Shape::scalar && value.items.front().find('\0') != std::string::npos)
    return false;
  text.place(config) = value.shape == Value::Shape::nothing ? std::string() : value.items.front();
  return true;
}

/// The name that was meant, perhaps, where many are to choose from.
std::string nearest_choice(const Key& key, const Value& value) {
  constexpr std::size_t kMany = 5;
  const auto* choice = std::get_if<Choice>(&key.kind);
  if (choice == nullptr || choice->names.size() < kMany || value.shape != Value::Shape::scalar)
    return "";
  const std::vector<std::string> known(choice->names.begin(), choice->names.end());
  return "; the nearest known one is " + bytes::double_quoted(nearest_of(value.items.front(), known));
}

}  // namespace

std::optional<std::string> assign(TrainConfig& config, const Key& key, const Value& value) {
  if (std::visit([&](const auto& kind) { return take(config, kind, value); }, key.kind))
    return std::nullopt;
  return std::string(key.name) + ": expected " + expectation(key) + "; got " + what_came(value) +
         nearest_choice(key, value);
}

std::string expectation(const Key& key) {
  const auto limits = [](const Integer& integer) {
    return "at least " + std::to_string(integer.least) +
           (integer.most == kNoLimit ? "" : " and at most " + std::to_string(integer.most));
  };
  const auto choices = [](const Choice& choice) {
    std::string text = "one of";
    for (const std::string_view name : choice.names)
      text += (name == choice.names.front() ? " " : ", ") + std::string(name);
    return text;
  };
  return std::visit(Overloaded{
                        [](const Flag&) -> std::string { return "true or false"; },
                        [&](const Integer& integer) { return "integer, " + limits(integer); },
                        [](const Number& number) { return "number, " + range_text(number.range); },
                        [](const NumberPair& pair) { return "list of two numbers, each " + range_text(pair.range); },
                        [](const Integers& list) {
                          return "list of increasing integers, each at least " + std::to_string(list.least) +
                                 " (may be empty)";
                        },
                        choices,
                        [](const Text&) -> std::string { return "text"; },
                    },
                    key.kind);
}

std::string written(const TrainConfig& config, const Key& key) {
  // Places hand out references to write through; nothing is written here.
  auto& c = const_cast<TrainConfig&>(config);
  return std::visit(Overloaded{
                        [&](const Flag& flag) -> std::string { return flag.place(c) ? "true" : "false"; },
                        [&](const Integer& integer) { return std::to_string(integer.place(c)); },
                        [&](const Number& number) { return shortest(number.place(c)); },
                        [&](const NumberPair& pair) {
                          const auto& values = pair.place(c);
                          return "[" + shortest(values[0]) + ", " + shortest(values[1]) + "]";
                        },
                        [&](const Integers& list) {
                          std::string text;
                          for (const std::int64_t number : list.place(c))
                            text += (text.empty() ? "" : ", ") + std::to_string(number);
                          return "[" + text + "]";
                        },
                        [&](const Choice& choice) { return choice.place(c); },
                        [&](const Text& text) { return bytes::double_quoted(text.place(c)); },
                    },
                    key.kind);
}

}  // namespace dba::config

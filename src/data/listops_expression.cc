#include <algorithm>
#include <vector>

#include "dba/bytes/errors.h"
#include "dba/data/listops.h"
#include "dba/data/tokeniser.h"
#include "listops_operators.h"

namespace dba::data {
namespace {

struct OpenOperator {
  std::size_t number;
  std::size_t first_argument;  // in the stack of values
};

bool is_digit(std::string_view word) {
  return word[0] >= '0' && word[0] <= '9';
}

// Of the digit, bracket or operator that a text begins with; 0: it begins with none.
std::size_t symbol_size(std::string_view text) {
  if (is_digit(text) || text[0] == ']')
    return 1;
  const auto found = std::ranges::find_if(kOperators, [&](std::string_view name) { return text.starts_with(name); });
  return found == kOperators.end() ? 0 : found->size();
}

}  // namespace

int apply_operator(std::size_t number, std::span<std::uint8_t> arguments) {
  switch (number) {
    case kMin:
      return *std::ranges::min_element(arguments);
    case kMax:
      return *std::ranges::max_element(arguments);
    case kMedian: {
      std::ranges::sort(arguments);
      const std::size_t half = arguments.size() / 2;
      if (arguments.size() % 2 == 1)
        return arguments[half];
      return (arguments[half - 1] + arguments[half]) / 2;
    }
    default: {
      int sum = 0;
      for (const std::uint8_t argument : arguments)
        sum = (sum + argument) % 10;
      return sum;
    }
  }
}

void strip_listops(std::string_view source, std::string& stripped) {
  stripped.clear();
  bool space = false;
  for (const char c : source) {
    if (c == ' ' || c == '(' || c == ')') {
      space = true;
      continue;
    }
    if ((space || c == ']') && !stripped.empty())
      stripped += ' ';
    stripped += c;
    space = c == ']';
  }
}

// By symbols and not by words: every file is read through it, and most symbols are one letter long.
std::string listops_fault(std::string_view stripped) {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  std::size_t open = 0;
  bool any = false;
  bool behind_operator = false;
  for (std::string_view rest = stripped; !rest.empty();) {
    const char first = rest[0];
    if (is_space(first)) {
      rest.remove_prefix(1);
      continue;
    }
    const std::size_t size = symbol_size(rest);
    std::string_view word = rest;
    if (any && open == 0)
      return "something follows the expression: " + bytes::in_quotes(next_word(word));
    if (size == 0 || (size < rest.size() && !is_space(rest[size])))
      return "unknown symbol " + bytes::in_quotes(next_word(word));
    const bool is_operator = size > 1;
    if (is_operator)
      ++open;
    if (first == ']') {
      if (open == 0)
        return "a ] without its operator";
      if (behind_operator)
        return "an operator without arguments";
      --open;
    }
    any = true;
    behind_operator = is_operator;
    rest.remove_prefix(size);
  }
  if (open > 0)
    return "an operator is not closed";
  return any ? "" : "it is empty";
}

int evaluate_listops(std::string_view source) {
  std::string text;
  strip_listops(source, text);
  if (const std::string fault = listops_fault(text); !fault.empty())
    throw bytes::FormatError("evaluate_listops: " + fault);
  std::vector<std::uint8_t> values;
  std::vector<OpenOperator> open;
  std::string_view rest = text;
  for (std::string_view word = next_word(rest); !word.empty(); word = next_word(rest)) {
    if (is_digit(word)) {
      values.push_back(static_cast<std::uint8_t>(word[0] - '0'));
    } else if (word == "]") {
      const OpenOperator last = open.back();
      open.pop_back();
      const int value = apply_operator(last.number, std::span(values).subspan(last.first_argument));
      values.resize(last.first_argument);
      values.push_back(static_cast<std::uint8_t>(value));
    } else {
      const auto found = std::ranges::find(kOperators, word);
      open.push_back({static_cast<std::size_t>(found - kOperators.begin()), values.size()});
    }
  }
  return values[0];
}

}  // namespace dba::data

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

[[noreturn]] void fail(const std::string& reason) {
  throw bytes::FormatError("evaluate_listops: " + reason);
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

int evaluate_listops(std::string_view source) {
  std::string text;
  strip_listops(source, text);
  std::vector<std::uint8_t> values;
  std::vector<OpenOperator> open;
  std::string_view rest = text;
  for (std::string_view word = next_word(rest); !word.empty(); word = next_word(rest)) {
    if (open.empty() && !values.empty())
      fail("something follows the expression: " + bytes::in_quotes(word));
    if (word.size() == 1 && word[0] >= '0' && word[0] <= '9') {
      values.push_back(static_cast<std::uint8_t>(word[0] - '0'));
    } else if (word == "]") {
      if (open.empty())
        fail("a ] without its operator");
      const OpenOperator last = open.back();
      open.pop_back();
      if (values.size() == last.first_argument)
        fail("an operator without arguments");
      const int value = apply_operator(last.number, std::span(values).subspan(last.first_argument));
      values.resize(last.first_argument);
      values.push_back(static_cast<std::uint8_t>(value));
    } else {
      const auto found = std::ranges::find(kOperators, word);
      if (found == kOperators.end())
        fail("unknown token " + bytes::in_quotes(word));
      open.push_back({static_cast<std::size_t>(found - kOperators.begin()), values.size()});
    }
  }
  if (!open.empty())
    fail("an operator is not closed");
  if (values.size() != 1)
    fail("no expression");
  return values[0];
}

}  // namespace dba::data

#include "json_scanner.h"

#include <charconv>
#include <set>

#include "dba/bytes/errors.h"

namespace dba::data {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

void JsonScanner::fail(const std::string& reason) const {
  throw JsonError("column " + std::to_string(position_ + 1) + ": " + reason);
}

char JsonScanner::peek() {
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c != ' ' && c != '\t' && c != '\r' && c != '\n')
      return c;
    ++position_;
  }
  return '\0';
}

bool JsonScanner::consume(char c) {
  if (peek() != c || position_ >= text_.size())
    return false;
  ++position_;
  return true;
}

void JsonScanner::expect(char c) {
  if (!consume(c))
    fail(std::string("expected '") + c + "', found " + describe_next());
}

bool JsonScanner::consume_word(std::string_view word) {
  peek();
  if (!text_.substr(position_).starts_with(word))
    return false;
  position_ += word.size();
  return true;
}

void JsonScanner::expect_end() {
  peek();
  if (position_ < text_.size())
    fail("nothing may follow, found " + describe_next());
}

std::string JsonScanner::describe_next() {
  const char c = peek();
  if (position_ >= text_.size())
    return "the end of the text";
  switch (c) {
    case '"':
      return "a string";
    case '{':
      return "an object";
    case '[':
      return "an array";
    default:
      if (is_digit(c) || c == '-')
        return "a number";
      return bytes::in_quotes(text_.substr(position_, 12));
  }
}

std::string_view JsonScanner::number_text() {
  peek();
  const std::size_t begin = position_;
  const auto digits = [this, begin] {
    const std::size_t first = position_;
    while (position_ < text_.size() && is_digit(text_[position_]))
      ++position_;
    if (position_ == first) {
      position_ = begin;
      fail("expected a number, found " + describe_next());
    }
  };
  const auto optional = [this](std::string_view characters) {
    if (position_ < text_.size() && characters.find(text_[position_]) != std::string_view::npos) {
      ++position_;
      return true;
    }
    return false;
  };
  optional("-");
  const std::size_t first = position_;
  digits();
  if (text_[first] == '0' && position_ > first + 1) {
    position_ = begin;
    fail("a number must not begin with 0 and another digit");
  }
  if (optional("."))
    digits();
  if (optional("eE")) {
    optional("+-");
    digits();
  }
  return text_.substr(begin, position_ - begin);
}

double JsonScanner::number() {
  const std::string_view text = number_text();
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec == std::errc::result_out_of_range) {
    // Too small counts as 0: that is a negative exponent, or digits behind "0." only.
    const bool negative_exponent = text.find("e-") != text.npos || text.find("E-") != text.npos;
    const bool positive_exponent = !negative_exponent && text.find_first_of("eE") != text.npos;
    const bool below_one = text.starts_with("0.") || text.starts_with("-0.");
    if (negative_exponent || (below_one && !positive_exponent))
      return 0;
    position_ -= text.size();
    fail("the number " + bytes::in_quotes(text) + " is too large");
  }
  return value;
}

std::uint64_t JsonScanner::unsigned_integer(std::uint64_t limit, std::string_view what) {
  const std::string_view text = number_text();
  std::uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{} || result.ptr != text.data() + text.size() || value > limit) {
    position_ -= text.size();
    fail(std::string(what) + " must be an integer from 0 to " + std::to_string(limit) + ", not " +
         bytes::in_quotes(text));
  }
  return value;
}

bool JsonScanner::boolean() {
  if (consume_word("true"))
    return true;
  if (!consume_word("false"))
    fail("expected true or false, found " + describe_next());
  return false;
}

void JsonScanner::skip() {
  std::string open;  // brackets that are open, innermost last
  std::string scratch;
  const auto key = [&] {
    string(scratch);
    expect(':');
  };
  while (true) {
    bool complete = true;
    if (consume('{')) {
      complete = consume('}');
      if (!complete) {
        open += '}';
        key();
      }
    } else if (consume('[')) {
      complete = consume(']');
      if (!complete)
        open += ']';
    } else if (peek() == '"') {
      string(scratch);
    } else if (!consume_word("null") && !consume_word("true") && !consume_word("false") && !consume_word("NaN") &&
               !consume_word("Infinity") && !consume_word("-Infinity")) {
      number_text();
    }
    while (complete) {
      if (open.empty())
        return;
      if (consume(',')) {
        if (open.back() == '}')
          key();
        break;
      }
      expect(open.back());
      open.pop_back();
    }
  }
}

void JsonScanner::object(const std::function<void(const std::string& key)>& member) {
  if (peek() != '{')
    fail("expected an object { … }, found " + describe_next());
  expect('{');
  if (consume('}'))
    return;
  std::set<std::string> seen;
  std::string key;
  do {
    string(key);
    if (!seen.insert(key).second)
      fail("the key " + bytes::in_quotes(key) + " comes twice");
    expect(':');
    member(key);
  } while (consume(','));
  expect('}');
}

std::vector<std::string> JsonScanner::strings() {
  std::vector<std::string> values;
  expect('[');
  if (consume(']'))
    return values;
  do {
    string(values.emplace_back());
  } while (consume(','));
  expect(']');
  return values;
}

}  // namespace dba::data

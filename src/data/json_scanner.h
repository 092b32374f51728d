#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace dba::data {

/// Text that is not the JSON that was expected. The message begins with the column.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Walks through JSON text value by value; no tree is built, nothing recurses. Unlike a strict parser it takes any
/// bytes in strings, because text is bytes here, undoes the escapes of `json_quoted`, and knows NaN, which Python
/// writes.
class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : text_(text) {}

  /// The first character of what comes next, white space passed over; 0 at the end.
  char peek();
  /// Passes over one character if it comes next.
  bool consume(char c);
  /// The same, or JsonError.
  void expect(char c);
  /// Passes over a word such as null if it comes next.
  bool consume_word(std::string_view word);
  /// Nothing but white space may follow.
  void expect_end();

  void string(std::string& value);
  /// The text of a number, its grammar checked.
  std::string_view number_text();
  /// Finite.
  double number();
  /// 0 … limit; `what` is what errors call it.
  std::uint64_t unsigned_integer(std::uint64_t limit, std::string_view what);
  bool boolean();
  /// Any value.
  void skip();

  /// Calls `member` with each key, which must take the value; no key may come twice.
  void object(const std::function<void(const std::string& key)>& member);
  std::vector<std::string> strings();

  /// "a string", "the end of the line": what comes next, for messages.
  std::string describe_next();
  [[noreturn]] void fail(const std::string& reason) const;

 private:
  void escape(std::string& value);
  unsigned hex4();

  std::string_view text_;
  std::size_t position_ = 0;
};

}  // namespace dba::data

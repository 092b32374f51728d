#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dba/data/example.h"

namespace dba::data {

enum class Scheme : std::uint8_t {
  byte,        ///< one symbol per byte of text
  whitespace,  ///< one per word of the vocabulary, words separated by white space
  integer,     ///< the numbers as they are (token numbers, pixels, or decimal numbers in a text)
};

enum class TooLong : std::uint8_t {
  cut,     ///< the end is dropped, and counted
  refuse,  ///< an error that names the example
};

/// "byte", "whitespace", "integer"; "cut", "refuse".
std::string_view name_of(Scheme scheme);
std::string_view name_of(TooLong policy);
/// Nothing for an unknown name.
std::optional<Scheme> parse_scheme(std::string_view name);
std::optional<TooLong> parse_too_long(std::string_view name);

struct TokeniserOptions {
  Scheme scheme = Scheme::byte;
  /// A symbol in front of every sequence, a symbol behind.
  bool cls = false;
  bool eos = false;
  /// Of a sequence, those two included, or of a series in time steps; 0: no bound. A cut keeps both symbols.
  std::size_t max_length = 0;
  TooLong too_long = TooLong::cut;
  /// Of scheme whitespace: rarer words are unknown; most words (0: all), frequent ones first.
  std::size_t min_count = 1;
  std::size_t max_words = 0;
  /// Of scheme integer: numbers are below it; 0: the largest of the training part plus one.
  std::size_t integers = 0;
  /// Bytes of scheme byte, numbers of scheme integer, that are no tokens. Encoded sequences hold them, max_length
  /// counts them; what makes batches leaves them out, and tells the positions of the others in the whole sequence.
  std::vector<std::int32_t> leave_out;
};

/// The words of a text: maximal runs without space, tab, line feed, vertical tab, form feed, carriage return.
/// Returns the first word of `rest` and removes it; empty at the end.
std::string_view next_word(std::string_view& rest);

/// Words, numbered from 0 by falling count and, where equal, by bytes.
class Vocabulary {
 public:
  Vocabulary() = default;
  /// Throws std::invalid_argument for a word that is empty, occurs twice or contains white space.
  explicit Vocabulary(std::vector<std::string> words);

  std::size_t size() const {
    return words_.size();
  }
  const std::vector<std::string>& words() const {
    return words_;
  }
  std::optional<std::int32_t> find(std::string_view word) const;

  /// A JSON array of strings.
  std::string to_json() const;
  /// Throws bytes::FormatError, which names the source.
  static Vocabulary from_json(std::string_view text, const std::string& source);

  bool operator==(const Vocabulary& other) const {
    return words_ == other.words_;
  }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::vector<std::string> words_;
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> numbers_;
};

/// Turns text and integers into symbols 0 … vocabulary_size() − 1.
///   byte        0 CLS, 1 EOS, byte b is b + 2: always 258 symbols
///   whitespace  0 CLS, 1 EOS, 2 unknown, word w is w + 3
///   integer     the number itself; CLS and EOS, where wanted, come after the largest
class Tokeniser {
 public:
  /// Throws std::invalid_argument for options that contradict each other.
  explicit Tokeniser(TokeniserOptions options = {}, Vocabulary vocabulary = {});

  const TokeniserOptions& options() const {
    return options_;
  }
  const Vocabulary& vocabulary() const {
    return vocabulary_;
  }
  std::size_t vocabulary_size() const;
  /// The symbols of content are first_content() … first_content() + contents() − 1; CLS and EOS are none of them, the
  /// unknown word is.
  std::int32_t first_content() const;
  std::size_t contents() const;
  /// Nothing where the options want none.
  std::optional<std::int32_t> cls() const;
  std::optional<std::int32_t> eos() const;

  bool leaves_any_out() const {
    return !left_out_.empty();
  }
  /// symbol: one of the vocabulary.
  bool leaves_out(std::int32_t symbol) const {
    return leaves_any_out() && left_out_[static_cast<std::size_t>(symbol)];
  }

  /// Puts the symbols of a text or of integers in the place of `ids`; returns whether the end was cut off. Throws
  /// bytes::FormatError, which begins with `place`, for a number out of range and for a sequence that is too long and
  /// must not be cut.
  bool encode_text(std::string_view text, const std::string& place, std::vector<std::int32_t>& ids) const;
  bool encode_integers(const std::vector<std::int32_t>& integers, const std::string& place,
                       std::vector<std::int32_t>& ids) const;

  /// The symbol as people read it: a word, a byte as text, a number, "<cls>", "<eos>", "<unk>".
  std::string symbol(std::int32_t id) const;

  /// Options and vocabulary, one JSON object.
  std::string to_json() const;
  /// Throws bytes::FormatError, which names the source.
  static Tokeniser from_json(std::string_view text, const std::string& source);

 private:
  std::int32_t cls_id() const;
  std::int32_t eos_id() const;
  void append_number(std::int64_t number, const std::string& place, std::vector<std::int32_t>& ids) const;
  bool finish(const std::string& place, std::vector<std::int32_t>& ids) const;

  void mark_left_out();

  TokeniserOptions options_;
  Vocabulary vocabulary_;
  std::vector<bool> left_out_;  ///< by symbol; empty: none
};

/// Calls take(symbol, position) for every symbol of a whole sequence that is not left out.
template <class Symbols, class Take>
void each_token(const Tokeniser& tokeniser, const Symbols& symbols, Take take) {
  std::int64_t position = 0;
  for (const std::int32_t symbol : symbols) {
    if (!tokeniser.leaves_out(symbol))
      take(symbol, position);
    ++position;
  }
}

/// How many those are.
template <class Symbols>
std::int64_t count_tokens(const Tokeniser& tokeniser, const Symbols& symbols) {
  if (!tokeniser.leaves_any_out())
    return static_cast<std::int64_t>(symbols.size());
  std::int64_t count = 0;
  each_token(tokeniser, symbols, [&count](std::int32_t, std::int64_t) { ++count; });
  return count;
}

/// Collects what a tokeniser must know of the training part.
class TokeniserBuilder {
 public:
  explicit TokeniserBuilder(TokeniserOptions options);
  /// Throws bytes::FormatError, which begins with `place`, for a text that scheme integer cannot read.
  void add(const Example& example, const std::string& place);
  Tokeniser build() const;

 private:
  void add_text(std::string_view text, const std::string& place);

  TokeniserOptions options_;
  std::map<std::string, std::uint64_t, std::less<>> counts_;
  std::int64_t largest_ = -1;
};

}  // namespace dba::data

#include <stdexcept>
#include <utility>

#include "dba/bytes/errors.h"
#include "dba/data/json_text.h"
#include "dba/data/tokeniser.h"
#include "json_scanner.h"

namespace dba::data {

namespace {

bool is_white_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

}  // namespace

std::string_view next_word(std::string_view& rest) {
  std::size_t begin = 0;
  while (begin < rest.size() && is_white_space(rest[begin]))
    ++begin;
  std::size_t end = begin;
  while (end < rest.size() && !is_white_space(rest[end]))
    ++end;
  const std::string_view word = rest.substr(begin, end - begin);
  rest.remove_prefix(end);
  return word;
}

Vocabulary::Vocabulary(std::vector<std::string> words) : words_(std::move(words)) {
  for (std::size_t i = 0; i < words_.size(); ++i) {
    std::string_view rest = words_[i];
    if (words_[i].empty() || next_word(rest).size() != words_[i].size()) {
      throw std::invalid_argument("Vocabulary: words: the word " + bytes::in_quotes(words_[i]) +
                                  " is empty or contains white space");
    }
    if (!numbers_.emplace(words_[i], static_cast<std::int32_t>(i)).second)
      throw std::invalid_argument("Vocabulary: words: the word " + bytes::in_quotes(words_[i]) + " comes twice");
  }
}

std::optional<std::int32_t> Vocabulary::find(std::string_view word) const {
  const auto found = numbers_.find(word);
  if (found == numbers_.end())
    return std::nullopt;
  return found->second;
}

std::string Vocabulary::to_json() const {
  std::string text = "[";
  for (std::size_t i = 0; i < words_.size(); ++i)
    text += (i > 0 ? "," : "") + json_quoted(words_[i]);
  return text + "]";
}

Vocabulary Vocabulary::from_json(std::string_view text, const std::string& source) {
  JsonScanner scanner(text);
  try {
    Vocabulary vocabulary(scanner.strings());
    scanner.expect_end();
    return vocabulary;
  } catch (const JsonError& error) {
    throw bytes::FormatError(source + ": vocabulary: " + error.what());
  } catch (const std::invalid_argument& error) {
    throw bytes::FormatError(source + ": " + error.what());
  }
}

}  // namespace dba::data

#include <algorithm>
#include <utility>

#include "dba/bytes/errors.h"
#include "dba/data/tokeniser.h"
#include "tokeniser_numbers.h"

namespace dba::data {

TokeniserBuilder::TokeniserBuilder(TokeniserOptions options) : options_(options) {
  Tokeniser checks_the_options(options);
}

void TokeniserBuilder::add_text(std::string_view text, const std::string& place) {
  if (options_.scheme == Scheme::byte)
    return;
  for (std::string_view word = next_word(text); !word.empty(); word = next_word(text)) {
    if (options_.scheme == Scheme::integer) {
      largest_ = std::max(largest_, parse_token_number(word, place));
    } else if (const auto found = counts_.find(word); found != counts_.end()) {
      ++found->second;
    } else {
      counts_.emplace(word, 1);
    }
  }
}

void TokeniserBuilder::add(const Example& example, const std::string& place) {
  if (example.content == Content::integers) {
    if (options_.scheme != Scheme::integer) {
      throw bytes::FormatError(place + ": holds integers, which scheme " + std::string(name_of(options_.scheme)) +
                               " cannot read; use scheme integer");
    }
    for (const std::int32_t number : example.integers) {
      if (static_cast<std::size_t>(number) >= kMostIntegers) {
        throw bytes::FormatError(place + ": the number " + std::to_string(number) + " is not below " +
                                 std::to_string(kMostIntegers));
      }
      largest_ = std::max<std::int64_t>(largest_, number);
    }
    return;
  }
  add_text(example.text, place);
  add_text(example.second, place);
}

Tokeniser TokeniserBuilder::build() const {
  if (options_.scheme == Scheme::integer) {
    TokeniserOptions options = options_;
    if (options.integers == 0)
      options.integers = static_cast<std::size_t>(largest_ + 1);
    return Tokeniser(options);
  }
  using Counted = std::pair<std::uint64_t, std::string>;
  std::vector<Counted> counted;
  for (const auto& [word, count] : counts_) {
    if (count >= options_.min_count)
      counted.emplace_back(count, word);
  }
  // The map is in the order of the bytes already.
  std::ranges::stable_sort(counted, std::ranges::greater{}, &Counted::first);
  if (options_.max_words > 0 && counted.size() > options_.max_words)
    counted.resize(options_.max_words);
  std::vector<std::string> words;
  words.reserve(counted.size());
  for (Counted& entry : counted)
    words.push_back(std::move(entry.second));
  return Tokeniser(options_, Vocabulary(std::move(words)));
}

}  // namespace dba::data

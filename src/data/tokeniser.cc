#include "dba/data/tokeniser.h"

#include <array>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <utility>

#include "bytes/count.h"
#include "dba/bytes/errors.h"
#include "tokeniser_numbers.h"

namespace dba::data {
namespace {

constexpr std::int32_t kCls = 0;
constexpr std::int32_t kEos = 1;
constexpr std::int32_t kUnknown = 2;
constexpr std::int32_t kFirstByte = 2;
constexpr std::int32_t kFirstWord = 3;

template <typename Choice, std::size_t n>
std::optional<Choice> parse_choice(const std::array<Choice, n>& choices, std::string_view name) {
  for (const Choice choice : choices) {
    if (name_of(choice) == name)
      return choice;
  }
  return std::nullopt;
}

}  // namespace

std::string_view name_of(Scheme scheme) {
  switch (scheme) {
    case Scheme::byte:
      return "byte";
    case Scheme::whitespace:
      return "whitespace";
    case Scheme::integer:
      return "integer";
  }
  return "";
}

std::string_view name_of(TooLong policy) {
  return policy == TooLong::cut ? "cut" : "refuse";
}

std::optional<Scheme> parse_scheme(std::string_view name) {
  return parse_choice(std::array{Scheme::byte, Scheme::whitespace, Scheme::integer}, name);
}

std::optional<TooLong> parse_too_long(std::string_view name) {
  return parse_choice(std::array{TooLong::cut, TooLong::refuse}, name);
}

std::int64_t parse_token_number(std::string_view word, const std::string& place) {
  std::int64_t number = 0;
  const auto result = std::from_chars(word.data(), word.data() + word.size(), number);
  if (result.ec != std::errc{} || result.ptr != word.data() + word.size() || number < 0 ||
      number >= static_cast<std::int64_t>(kMostIntegers)) {
    throw bytes::FormatError(place + ": " + bytes::in_quotes(word) + " is no integer from 0 to " +
                             std::to_string(kMostIntegers - 1) +
                             "; scheme integer reads numbers separated by white space");
  }
  return number;
}

Tokeniser::Tokeniser(TokeniserOptions options, Vocabulary vocabulary)
    : options_(std::move(options)), vocabulary_(std::move(vocabulary)) {
  const std::size_t specials = (options_.cls ? 1u : 0u) + (options_.eos ? 1u : 0u);
  if (options_.max_length > 0 && options_.max_length <= specials) {
    throw std::invalid_argument("Tokeniser: max_length: expected more than the " + bytes::counted(specials, "symbol") +
                                " that cls and eos take, got " + std::to_string(options_.max_length));
  }
  if (options_.integers > kMostIntegers) {
    throw std::invalid_argument("Tokeniser: integers: expected at most " + std::to_string(kMostIntegers) + ", got " +
                                std::to_string(options_.integers));
  }
  if (options_.scheme != Scheme::whitespace && vocabulary_.size() > 0)
    throw std::invalid_argument("Tokeniser: vocabulary: only scheme whitespace has words");
  mark_left_out();
}

void Tokeniser::mark_left_out() {
  if (options_.leave_out.empty())
    return;
  if (options_.scheme == Scheme::whitespace)
    throw std::invalid_argument(
        "Tokeniser: leave_out: expected scheme byte or integer, the symbols of whitespace are words");
  const std::size_t most = options_.scheme == Scheme::integer && options_.integers == 0 ? kMostIntegers : contents();
  for (const std::int32_t number : options_.leave_out) {
    if (number < 0 || static_cast<std::size_t>(number) >= most) {
      throw std::invalid_argument("Tokeniser: leave_out: expected numbers below " + std::to_string(most) +
                                  ", the symbols of scheme " + std::string(name_of(options_.scheme)) + ", got " +
                                  std::to_string(number));
    }
  }
  left_out_.resize(vocabulary_size());
  for (const std::int32_t number : options_.leave_out) {
    if (static_cast<std::size_t>(number) < contents())
      left_out_[static_cast<std::size_t>(first_content() + number)] = true;
  }
}

std::size_t Tokeniser::vocabulary_size() const {
  switch (options_.scheme) {
    case Scheme::byte:
      return kFirstByte + 256;
    case Scheme::whitespace:
      return kFirstWord + vocabulary_.size();
    case Scheme::integer:
      break;
  }
  return options_.integers + (options_.cls ? 1 : 0) + (options_.eos ? 1 : 0);
}

std::int32_t Tokeniser::first_content() const {
  switch (options_.scheme) {
    case Scheme::byte:
      return kFirstByte;
    case Scheme::whitespace:
      return kUnknown;
    case Scheme::integer:
      break;
  }
  return 0;
}

std::size_t Tokeniser::contents() const {
  switch (options_.scheme) {
    case Scheme::byte:
      return 256;
    case Scheme::whitespace:
      return 1 + vocabulary_.size();
    case Scheme::integer:
      break;
  }
  return options_.integers;
}

std::optional<std::int32_t> Tokeniser::cls() const {
  return options_.cls ? std::optional(cls_id()) : std::nullopt;
}

std::optional<std::int32_t> Tokeniser::eos() const {
  return options_.eos ? std::optional(eos_id()) : std::nullopt;
}

std::int32_t Tokeniser::cls_id() const {
  return options_.scheme == Scheme::integer ? static_cast<std::int32_t>(options_.integers) : kCls;
}

std::int32_t Tokeniser::eos_id() const {
  return options_.scheme == Scheme::integer ? static_cast<std::int32_t>(options_.integers + (options_.cls ? 1 : 0))
                                            : kEos;
}

void Tokeniser::append_number(std::int64_t number, const std::string& place, std::vector<std::int32_t>& ids) const {
  if (number < 0 || number >= static_cast<std::int64_t>(options_.integers)) {
    throw bytes::FormatError(place + ": the number " + std::to_string(number) + " is not below " +
                             std::to_string(options_.integers) +
                             ", the size of the vocabulary; state a larger one when training");
  }
  ids.push_back(static_cast<std::int32_t>(number));
}

// The sequence has its CLS and all of its content; now its end.
bool Tokeniser::finish(const std::string& place, std::vector<std::int32_t>& ids) const {
  const std::size_t length = ids.size() + (options_.eos ? 1 : 0);
  const bool too_long = options_.max_length > 0 && length > options_.max_length;
  if (too_long) {
    if (options_.too_long == TooLong::refuse) {
      throw bytes::FormatError(place + ": a sequence of " + std::to_string(length) + " symbols, more than max_length " +
                               std::to_string(options_.max_length) + "; raise it or let long sequences be cut");
    }
    ids.resize(options_.max_length - (options_.eos ? 1 : 0));
  }
  if (options_.eos)
    ids.push_back(eos_id());
  return too_long;
}

bool Tokeniser::encode_text(std::string_view text, const std::string& place, std::vector<std::int32_t>& ids) const {
  ids.clear();
  if (options_.cls)
    ids.push_back(cls_id());
  if (options_.scheme == Scheme::byte) {
    ids.reserve(text.size() + 2);
    for (const char c : text)
      ids.push_back(kFirstByte + static_cast<unsigned char>(c));
  } else {
    std::string_view rest = text;
    for (std::string_view word = next_word(rest); !word.empty(); word = next_word(rest)) {
      if (options_.scheme == Scheme::integer) {
        append_number(parse_token_number(word, place), place, ids);
      } else {
        const auto number = vocabulary_.find(word);
        ids.push_back(number ? kFirstWord + *number : kUnknown);
      }
    }
  }
  return finish(place, ids);
}

bool Tokeniser::encode_integers(const std::vector<std::int32_t>& integers, const std::string& place,
                                std::vector<std::int32_t>& ids) const {
  if (options_.scheme != Scheme::integer) {
    throw bytes::FormatError(place + ": holds integers, which scheme " + std::string(name_of(options_.scheme)) +
                             " cannot read; use scheme integer");
  }
  ids.clear();
  if (options_.cls)
    ids.push_back(cls_id());
  for (const std::int32_t number : integers)
    append_number(number, place, ids);
  return finish(place, ids);
}

std::string Tokeniser::symbol(std::int32_t id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= vocabulary_size()) {
    throw std::invalid_argument("Tokeniser::symbol: id: expected 0 to " + std::to_string(vocabulary_size()) +
                                " (exclusive), got " + std::to_string(id));
  }
  if (options_.scheme == Scheme::integer) {
    if (static_cast<std::size_t>(id) < options_.integers)
      return std::to_string(id);
    return options_.cls && id == cls_id() ? "<cls>" : "<eos>";
  }
  if (id == kCls)
    return "<cls>";
  if (id == kEos)
    return "<eos>";
  if (options_.scheme == Scheme::byte)
    return {static_cast<char>(id - kFirstByte)};
  return id == kUnknown ? "<unk>" : vocabulary_.words()[static_cast<std::size_t>(id - kFirstWord)];
}

}  // namespace dba::data

#include <cstdint>
#include <limits>
#include <stdexcept>

#include "dba/bytes/errors.h"
#include "dba/data/json_text.h"
#include "dba/data/tokeniser.h"
#include "json_scanner.h"
#include "tokeniser_json.h"
#include "tokeniser_numbers.h"

namespace dba::data {

std::string Tokeniser::to_json() const {
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  std::string text = "{\"scheme\":" + json_quoted(name_of(options_.scheme));
  text += std::string(",\"cls\":") + flag(options_.cls) + ",\"eos\":" + flag(options_.eos);
  text += ",\"max_length\":" + std::to_string(options_.max_length);
  text += ",\"too_long\":" + json_quoted(name_of(options_.too_long));
  text += ",\"min_count\":" + std::to_string(options_.min_count);
  text += ",\"max_words\":" + std::to_string(options_.max_words);
  text += ",\"integers\":" + std::to_string(options_.integers);
  if (!options_.leave_out.empty()) {
    std::string numbers;
    for (const std::int32_t number : options_.leave_out)
      numbers += (numbers.empty() ? "" : ",") + std::to_string(number);
    text += ",\"leave_out\":[" + numbers + "]";
  }
  return text + ",\"vocabulary\":" + vocabulary_.to_json() + "}";
}

namespace {

std::vector<std::int32_t> scan_symbols(JsonScanner& scanner) {
  std::vector<std::int32_t> symbols;
  scanner.expect('[');
  if (scanner.consume(']'))
    return symbols;
  do {
    symbols.push_back(static_cast<std::int32_t>(scanner.unsigned_integer(kMostIntegers - 1, "a symbol")));
  } while (scanner.consume(','));
  scanner.expect(']');
  return symbols;
}

}  // namespace

Tokeniser scan_tokeniser(JsonScanner& scanner) {
  TokeniserOptions options;
  Vocabulary vocabulary;
  std::string name;
  const auto size = [&scanner] {
    return static_cast<std::size_t>(scanner.unsigned_integer(std::numeric_limits<std::int64_t>::max(), "a size"));
  };
  try {
    scanner.object([&](const std::string& key) {
      if (key == "scheme") {
        scanner.string(name);
        const auto scheme = parse_scheme(name);
        if (!scheme)
          scanner.fail("scheme must be byte, whitespace or integer, not " + bytes::in_quotes(name));
        options.scheme = *scheme;
      } else if (key == "too_long") {
        scanner.string(name);
        const auto policy = parse_too_long(name);
        if (!policy)
          scanner.fail("too_long must be cut or refuse, not " + bytes::in_quotes(name));
        options.too_long = *policy;
      } else if (key == "cls") {
        options.cls = scanner.boolean();
      } else if (key == "eos") {
        options.eos = scanner.boolean();
      } else if (key == "max_length") {
        options.max_length = size();
      } else if (key == "min_count") {
        options.min_count = size();
      } else if (key == "max_words") {
        options.max_words = size();
      } else if (key == "integers") {
        options.integers = size();
      } else if (key == "leave_out") {
        options.leave_out = scan_symbols(scanner);
      } else if (key == "vocabulary") {
        vocabulary = Vocabulary(scanner.strings());
      } else {
        scanner.fail("unknown key " + bytes::in_quotes(key));
      }
    });
    return Tokeniser(options, std::move(vocabulary));
  } catch (const std::invalid_argument& error) {
    scanner.fail(error.what());
  }
}

Tokeniser Tokeniser::from_json(std::string_view text, const std::string& source) {
  JsonScanner scanner(text);
  try {
    Tokeniser tokeniser = scan_tokeniser(scanner);
    scanner.expect_end();
    return tokeniser;
  } catch (const JsonError& error) {
    throw bytes::FormatError(source + ": tokeniser: " + error.what());
  }
}

}  // namespace dba::data

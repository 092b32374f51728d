#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "bytes/count.h"
#include "dba/bytes/errors.h"
#include "dba/data/tokeniser.h"
#include "json_scanner.h"
#include "line_reader.h"
#include "readers.h"

namespace dba::data {
namespace {

constexpr std::string_view kTokens = "tokens";
constexpr std::string_view kSeries = "series";
constexpr std::string_view kPixels = "pixels";

// Integers, or words, which are text with one space between: a word with white space in it could not come back out.
void scan_tokens(JsonScanner& scanner, Example& example) {
  scanner.expect('[');
  example.content = scanner.peek() == '"' ? Content::text : Content::integers;
  if (scanner.consume(']'))
    return;
  std::string word;
  do {
    if (example.content == Content::integers) {
      example.integers.push_back(
          static_cast<std::int32_t>(scanner.unsigned_integer(std::numeric_limits<std::int32_t>::max(), "a token")));
      continue;
    }
    scanner.string(word);
    std::string_view rest = word;
    if (next_word(rest).size() != word.size() || word.empty())
      scanner.fail("the token " + bytes::in_quotes(word) + " is empty or contains white space");
    if (!example.text.empty())
      example.text += ' ';
    example.text += word;
  } while (scanner.consume(','));
  scanner.expect(']');
}

float scan_value(JsonScanner& scanner) {
  if (scanner.consume_word("null") || scanner.consume_word("NaN"))
    return std::numeric_limits<float>::quiet_NaN();
  const double value = scanner.number();
  if (std::abs(value) > static_cast<double>(std::numeric_limits<float>::max()))
    scanner.fail("a value is too large for a 32-bit float");
  return static_cast<float>(value);
}

void scan_series(JsonScanner& scanner, Example& example) {
  example.content = Content::series;
  scanner.expect('[');
  if (scanner.consume(']'))
    return;
  if (scanner.peek() != '[') {
    example.channels = 1;
    do {
      example.values.push_back(scan_value(scanner));
    } while (scanner.consume(','));
    scanner.expect(']');
    return;
  }
  std::size_t step = 0;
  do {
    scanner.expect('[');
    const std::size_t before = example.values.size();
    if (!scanner.consume(']')) {
      do {
        example.values.push_back(scan_value(scanner));
      } while (scanner.consume(','));
      scanner.expect(']');
    }
    const std::size_t channels = example.values.size() - before;
    if (channels == 0)
      scanner.fail("time step " + std::to_string(step) + " of the series has no values");
    if (step > 0 && channels != example.channels) {
      scanner.fail("time step " + std::to_string(step) + " of the series has " + bytes::counted(channels, "channel") +
                   ", the first " + std::to_string(example.channels));
    }
    example.channels = channels;
    ++step;
  } while (scanner.consume(','));
  scanner.expect(']');
}

// Rows within rows (height, width, colour) are laid end to end; the innermost ones have one length.
void scan_pixels(JsonScanner& scanner, Example& example, std::size_t& row_length, int depth = 1) {
  constexpr int kDeepest = 3;
  scanner.expect('[');
  example.content = Content::integers;
  if (scanner.consume(']'))
    return;
  if (scanner.peek() == '[') {
    if (depth == kDeepest)
      scanner.fail("pixels are nested more than 3 deep");
    do {
      scan_pixels(scanner, example, row_length, depth + 1);
    } while (scanner.consume(','));
  } else {
    const std::size_t before = example.integers.size();
    do {
      example.integers.push_back(static_cast<std::int32_t>(scanner.unsigned_integer(255, "a pixel")));
    } while (scanner.consume(','));
    const std::size_t length = example.integers.size() - before;
    if (row_length != 0 && length != row_length) {
      scanner.fail("a row of " + bytes::counted(length, "pixel") + " after one of " + std::to_string(row_length));
    }
    row_length = length;
  }
  scanner.expect(']');
}

void scan_label(JsonScanner& scanner, Example& example) {
  if (scanner.consume_word("null"))
    return;
  std::string& label = example.label.emplace();
  if (scanner.peek() == '"')
    scanner.string(label);
  else if (scanner.consume_word("true"))
    label = "true";
  else if (scanner.consume_word("false"))
    label = "false";
  else if (scanner.peek() == '[' || scanner.peek() == '{')
    scanner.fail("the label must be a string or a number, found " + scanner.describe_next());
  else
    label = scanner.number_text();
}

class JsonlReader : public Reader {
 public:
  JsonlReader(std::unique_ptr<ByteSource> source, const std::string& file, const ReaderOptions& options)
      : Reader(file, options.labels), options_(options), lines_(std::move(source), file, options.longest_record) {}

 protected:
  bool read(Example& example) override {
    std::string_view line;
    do {
      if (!lines_.next(line))
        return false;
    } while (line.find_first_not_of(" \t\r") == line.npos);
    begin_record(lines_.number());
    JsonScanner scanner(line);
    try {
      scan_record(scanner, example);
      scanner.expect_end();
    } catch (const JsonError& error) {
      fail(error.what());
    }
    return true;
  }

 private:
  void scan_record(JsonScanner& scanner, Example& example) {
    std::string content;  // the key that gave it
    bool first = false;
    bool second = false;
    scanner.object([&](const std::string& key) {
      if (key == options_.label) {
        if (labels() == LabelUse::ignored)
          scanner.skip();
        else
          scan_label(scanner, example);
      } else if (key == options_.text1 || key == options_.text2) {
        (key == options_.text1 ? first : second) = true;
        claim(scanner, content, "the pair");
        scanner.string(key == options_.text1 ? example.text : example.second);
        example.content = Content::pair;
      } else if (key == options_.text) {
        claim(scanner, content, key);
        scanner.string(example.text);
      } else if (key == kTokens) {
        claim(scanner, content, key);
        scan_tokens(scanner, example);
      } else if (key == kSeries) {
        claim(scanner, content, key);
        scan_series(scanner, example);
      } else if (key == kPixels) {
        claim(scanner, content, key);
        std::size_t row_length = 0;
        scan_pixels(scanner, example, row_length);
      } else {
        scanner.skip();
      }
    });
    if (content.empty()) {
      fail("has none of the keys " + bytes::in_quotes(options_.text) + ", " + bytes::in_quotes(options_.text1) +
           " and " + bytes::in_quotes(options_.text2) + ", \"tokens\", \"series\", \"pixels\"");
    }
    if (first != second) {
      fail("has " + bytes::in_quotes(first ? options_.text1 : options_.text2) + " but not " +
           bytes::in_quotes(first ? options_.text2 : options_.text1));
    }
  }

  static void claim(JsonScanner& scanner, std::string& content, const std::string& key) {
    if (!content.empty() && content != key) {
      scanner.fail("has both " + bytes::in_quotes(content) + " and " + bytes::in_quotes(key) +
                   "; an example holds one of them");
    }
    content = key;
  }

  ReaderOptions options_;
  LineReader lines_;
};

}  // namespace

std::unique_ptr<Reader> open_jsonl(std::unique_ptr<ByteSource> source, const std::string& file,
                                   const ReaderOptions& options) {
  return std::make_unique<JsonlReader>(std::move(source), file, options);
}

}  // namespace dba::data

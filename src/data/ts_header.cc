#include "ts_header.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <set>
#include <system_error>

#include "dba/bytes/errors.h"
#include "dba/data/tokeniser.h"
#include "series_value.h"

namespace dba::data {
namespace {

std::string lower_case(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

// One line of the header: a tag and its words.
class TagLine {
 public:
  TagLine(const std::string& file, std::size_t number, std::string_view line)
      : file_(file), number_(number), line_(line), rest_(line) {
    if (!trimmed(line).starts_with('@'))
      fail(trimmed(line), "expected a tag such as @problemName, or @data, found " + bytes::in_quotes(trimmed(line)));
    if (const std::size_t inside = trimmed(line).find('\r'); inside != line.npos) {
      fail(trimmed(line).substr(inside),
           "a carriage return stands inside the line, so its lines do not end in line feeds; save the file with line "
           "feeds, as tr '\\r' '\\n' writes them");
    }
    tag_ = next_word(rest_);
    name_ = lower_case(tag_.substr(1));
  }

  /// Lower case, without the @.
  const std::string& name() const {
    return name_;
  }
  std::string_view tag() const {
    return tag_;
  }
  std::string_view next() {
    return next_word(rest_);
  }
  bool flag() {
    const std::string_view word = next();
    const std::string value = lower_case(word);
    if (value != "true" && value != "false")
      fail(word, std::string(tag_) + " must be true or false, not " + bytes::in_quotes(word));
    return value == "true";
  }
  std::size_t count() {
    const std::string_view word = next();
    std::size_t value = 0;
    const auto [stopped, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || stopped != word.data() + word.size() || value == 0)
      fail(word, std::string(tag_) + " must be a whole number above 0, not " + bytes::in_quotes(word));
    return value;
  }
  void expect_end() {
    if (const std::string_view word = next(); !word.empty())
      fail(word, bytes::in_quotes(word) + " follows the value of " + std::string(tag_) +
                     "; take it out, or put it on a line of its own");
  }
  [[noreturn]] void fail(std::string_view word, const std::string& reason) const {
    const std::size_t column = word.empty() ? line_.size() : static_cast<std::size_t>(word.data() - line_.data());
    throw bytes::FormatError(file_ + ":" + std::to_string(number_) + ": column " + std::to_string(column + 1) + ": " +
                             reason);
  }
  [[noreturn]] void fail(const std::string& reason) const {
    fail(tag_, reason);
  }

 private:
  const std::string& file_;
  std::size_t number_;
  std::string_view line_;
  std::string_view rest_;
  std::string_view tag_;
  std::string name_;
};

void take_class_label(TagLine& line, TsHeader& header) {
  header.labelled = line.flag();
  header.label_denied = !header.labelled;
  if (!header.labelled)
    return line.expect_end();
  for (std::string_view word = line.next(); !word.empty(); word = line.next()) {
    if (std::ranges::find(header.classes, word) != header.classes.end())
      line.fail(word, std::string(line.tag()) + " lists the class " + bytes::in_quotes(word) +
                          " twice; a class is one word there: where labels have several, leave the list out");
    header.classes.emplace_back(word);
  }
}

}  // namespace

const std::string* TsHeader::find_class(std::string_view label) const {
  auto found = std::ranges::find(classes, label);
  if (found == classes.end()) {
    const std::string wanted = lower_case(label);
    found = std::ranges::find(classes, wanted, lower_case);
  }
  return found == classes.end() ? nullptr : &*found;
}

bool says_nothing(std::string_view line) {
  return line.empty() || line.front() == '#' || line.front() == '%';
}

TsHeader read_ts_header(LineReader& lines, const std::string& file, LabelUse labels) {
  TsHeader header;
  std::set<std::string> seen;
  std::optional<bool> equal_length;
  std::string_view text;
  while (lines.next(text)) {
    if (says_nothing(trimmed(text)))
      continue;
    TagLine line(file, lines.number(), text);
    const std::string name = line.name() == "dimension" ? "dimensions" : line.name();
    if (!seen.insert(name).second)
      line.fail("the tag " + std::string(line.tag()) + " comes twice; keep the right one");
    if (name == "data") {
      line.expect_end();
      header.equal_length = equal_length.value_or(header.series_length > 0);
      if (!header.equal_length)
        header.series_length = 0;
      return header;
    }
    if (name == "timestamps") {
      if (line.flag()) {
        line.fail(
            "series with time stamps are not read; bring them to equal time steps and write their values alone, "
            "with @timeStamps false");
      }
      line.expect_end();
    } else if (name == "missing") {
      line.flag();
      line.expect_end();
    } else if (name == "univariate") {
      header.univariate = line.flag();
      line.expect_end();
    } else if (name == "dimensions") {
      header.dimensions = line.count();
      line.expect_end();
    } else if (name == "equallength") {
      equal_length = line.flag();
      line.expect_end();
    } else if (name == "serieslength") {
      header.series_length = line.count();
      line.expect_end();
    } else if (name == "classlabel") {
      take_class_label(line, header);
    } else if (name == "targetlabel" && line.flag()) {
      if (labels != LabelUse::ignored) {
        line.fail(
            "the last field of the rows is a number to be estimated, and this program learns classes; put a class "
            "in its place and list the classes with @classLabel true");
      }
      header.labelled = true;
    }
    if (header.univariate) {
      if (header.dimensions > 1)
        line.fail("@univariate true promises one dimension, @dimensions " + std::to_string(header.dimensions) +
                  "; mend the wrong one");
      header.dimensions = 1;
    }
  }
  throw bytes::FormatError(file + ": has no line @data before the rows; " +
                           (lines.number() == 0 ? "it is empty: fetch it again"
                                                : "it is no .ts file, its end is missing, or its lines do not end in "
                                                  "line feeds"));
}

}  // namespace dba::data

#include <array>
#include <string_view>
#include <utility>

#include "bytes/count.h"
#include "dba/bytes/errors.h"
#include "line_reader.h"
#include "readers.h"

namespace dba::data {
namespace {

constexpr std::size_t kColumns = 5;

// "1", "1.0" and "0.000" are 1, 1 and 0; nothing for what is no such label.
std::string_view binary_label(std::string_view text) {
  const std::string_view label = text.substr(0, 1);
  std::string_view rest = text.substr(label.size());
  if (label != "0" && label != "1")
    return {};
  if (rest.empty())
    return label;
  return rest.starts_with('.') && rest.find_first_not_of('0', 1) == rest.npos ? label : std::string_view();
}

class AanReader : public Reader {
 public:
  AanReader(std::unique_ptr<ByteSource> source, const std::string& file, const ReaderOptions& options)
      : Reader(file, options.labels), lines_(std::move(source), file, options.longest_record) {}

  std::string doubt() const override {
    if (rows_with_zeros_ == 0)
      return "";
    return "bytes of 0 in " + bytes::counted(rows_with_zeros_, "row") + ", the first in line " +
           std::to_string(first_with_zeros_) + "; only a part of it may have arrived: fetch it again";
  }
  std::string doubt_of_end() const override {
    if (lines_.number() == 0 || lines_.ended_in_feed())
      return "";
    return "no line end behind its last row, line " + std::to_string(lines_.number()) +
           "; it may be cut short: fetch it again, or end the row with a line feed if it is whole";
  }

 protected:
  bool read(Example& example) override {
    std::string_view line;
    do {
      if (!lines_.next(line))
        return false;
      line = without_return(line);
    } while (line.empty());
    begin_record(lines_.number());
    if (line.find('\0') != line.npos && rows_with_zeros_++ == 0)
      first_with_zeros_ = lines_.number();
    std::array<std::string_view, kColumns> fields;
    std::size_t count = 0;
    for (bool more = true; more; ++count) {
      const std::size_t tab = line.find('\t');
      more = tab != line.npos;
      if (count < kColumns)
        fields[count] = line.substr(0, tab);
      line.remove_prefix(more ? tab + 1 : 0);
    }
    if (count < kColumns && !lines_.ended_in_feed())
      fail("has " + bytes::counted(count, "column") + " of 5 and no line end: the file is cut short; fetch it again");
    if (count != kColumns) {
      fail("has " + bytes::counted(count, "column") +
           ", expected 5, separated by tabs: label, first and second id, first and second text; a tab or a line end "
           "inside a text must become a space");
    }
    const std::string_view label = binary_label(fields[0]);
    if (label.empty())
      fail("the label is " + bytes::in_quotes(fields[0]) + ", expected 0 or 1, or 0.0 or 1.0");
    example.content = Content::pair;
    example.label = label;
    example.text = fields[3];
    example.second = fields[4];
    return true;
  }

 private:
  LineReader lines_;
  std::size_t rows_with_zeros_ = 0;
  std::size_t first_with_zeros_ = 0;
};

}  // namespace

bool is_aan(std::string_view beginning) {
  const std::size_t tab = beginning.find('\t');
  return tab != beginning.npos && !binary_label(beginning.substr(0, tab)).empty();
}

std::unique_ptr<Reader> open_aan(std::unique_ptr<ByteSource> source, const std::string& file,
                                 const ReaderOptions& options) {
  return std::make_unique<AanReader>(std::move(source), file, options);
}

}  // namespace dba::data

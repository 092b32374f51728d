#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>

#include "dba/bytes/errors.h"
#include "quoted_list.h"
#include "readers.h"
#include "series_value.h"
#include "table_rows.h"

namespace dba::data {
namespace {

// A row for every time step: the columns of the case, of the time and of the label, and all others are channels, in the
// order of the header. The rows of a case stand together.
class CsvLongReader : public Reader {
 public:
  CsvLongReader(std::unique_ptr<ByteSource> source, const std::string& file, const ReaderOptions& options)
      : Reader(file, options.labels), rows_(std::move(source), file, ',', options.quotes, options.longest_record) {
    if (!rows_.next(header_))
      throw bytes::FormatError(file + ": is empty; expected a header with the names of the columns");
    begin_record(rows_.line());
    case_ = required_column(options.case_column, "data.case_column (--case of dba data check)");
    time_ = required_column(options.time_column, "data.time_column (--time of dba data check)");
    label_ = column(options.label);
    if (!label_ && options.labels == LabelUse::required)
      label_ = required_column(options.label, "data.label_column (--label of dba data check)");
    for (std::size_t i = 0; i < header_.size(); ++i) {
      if (i != case_ && i != time_ && i != label_)
        channels_.push_back(i);
    }
    if (channels_.empty())
      fail("the header names no channel besides the columns of the case, the time and the label");
  }

 protected:
  bool read(Example& example) override {
    if (!has_row_ && !advance())
      return false;
    while (spoiled_ && fields_[case_] == *spoiled_) {
      if (!advance())
        return false;
    }
    const std::string name = fields_[case_];
    const std::size_t first_line = rows_.line();
    // Should a row be bad, the rest of the case is passed over.
    spoiled_ = name;
    begin_record(first_line);
    if (!finished_.insert(name).second) {
      fail("the case " + bytes::in_quotes(name) +
           " was complete before; the rows of a case stand together: sort the file by case and time");
    }
    example.content = Content::series;
    example.channels = channels_.size();
    if (label_)
      example.label = fields_[*label_];
    last_time_ = -std::numeric_limits<double>::infinity();
    do {
      begin_record(rows_.line());
      add_row(name, example);
    } while (advance() && fields_[case_] == name);
    spoiled_.reset();
    begin_record(first_line);
    return true;
  }

 private:
  // The next row; false at the end.
  bool advance() {
    has_row_ = false;
    if (!rows_.next(fields_))
      return false;
    if (fields_.size() != header_.size()) {
      begin_record(rows_.line());
      fail(rows_.count_fault(fields_.size(), header_.size()));
    }
    has_row_ = true;
    return true;
  }

  void add_row(const std::string& name, Example& example) {
    const std::string_view text = trimmed(fields_[time_]);
    double time = 0;
    const auto [stopped, error] = std::from_chars(text.data(), text.data() + text.size(), time);
    if (error != std::errc() || stopped != text.data() + text.size())
      fail_in(time_, "expected a number, found " + bytes::in_quotes(text) + "; number the time steps");
    if (!(time > last_time_)) {
      fail_in(time_, "the time " + bytes::in_quotes(text) + " does not come after the one before in the case " +
                         bytes::in_quotes(name) + "; sort the file by case and time");
    }
    last_time_ = time;
    if (label_ && fields_[*label_] != *example.label) {
      fail_in(*label_, "the label " + bytes::in_quotes(fields_[*label_]) + ", but the case " + bytes::in_quotes(name) +
                           " began with " + bytes::in_quotes(*example.label) + "; a case has one label");
    }
    for (const std::size_t channel : channels_)
      example.values.push_back(value_of(channel));
  }

  float value_of(std::size_t channel) const {
    const std::string_view text = trimmed(fields_[channel]);
    if (text.empty() || text == "NA")
      return std::numeric_limits<float>::quiet_NaN();
    float value = 0;
    const char* const end = text.data() + text.size();
    if (read_value(text.data(), end, value) != end)
      fail_in(channel, value_fault(text));
    return value;
  }

  std::optional<std::size_t> column(const std::string& name) const {
    return rows_.column(header_, name);
  }

  std::size_t required_column(const std::string& name, const std::string& option) const {
    const auto found = column(name);
    if (!found)
      fail("the header has no column " + bytes::in_quotes(name) + "; the columns are " +
           quoted_list(header_, kMostColumns) + "; name the right one with " + option);
    return *found;
  }

  [[noreturn]] void fail_in(std::size_t index, const std::string& reason) const {
    fail("column " + bytes::in_quotes(header_[index]) + ": " + reason);
  }

  TableRows rows_;
  std::vector<std::string> header_;
  std::vector<std::string> fields_;  // of the row that comes next, if has_row_
  bool has_row_ = false;
  std::size_t case_ = 0;
  std::size_t time_ = 0;
  std::optional<std::size_t> label_;
  std::vector<std::size_t> channels_;
  double last_time_ = 0;
  std::optional<std::string> spoiled_;  // a case with a bad row
  std::unordered_set<std::string> finished_;
};

}  // namespace

std::unique_ptr<Reader> open_csv_long(std::unique_ptr<ByteSource> source, const std::string& file,
                                      const ReaderOptions& options) {
  return std::make_unique<CsvLongReader>(std::move(source), file, options);
}

bool is_csv_long(std::string_view beginning) {
  std::string_view header = beginning.substr(0, beginning.find('\n'));
  bool has_case = false;
  bool has_time = false;
  while (!header.empty()) {
    const std::size_t end = std::min(header.find(','), header.size());
    std::string_view name = trimmed(header.substr(0, end));
    if (name.size() >= 2 && name.starts_with('"') && name.ends_with('"'))
      name = name.substr(1, name.size() - 2);
    has_case = has_case || name == "case";
    has_time = has_time || name == "time";
    if (name == "text")
      return false;
    header.remove_prefix(std::min(end + 1, header.size()));
  }
  return has_case && has_time;
}

}  // namespace dba::data

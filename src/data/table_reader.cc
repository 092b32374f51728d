#include <algorithm>
#include <optional>
#include <utility>

#include "dba/bytes/errors.h"
#include "dba/data/listops.h"
#include "quoted_list.h"
#include "readers.h"
#include "table_rows.h"

namespace dba::data {
namespace {

class TableReader : public Reader {
 public:
  TableReader(std::unique_ptr<ByteSource> source, const std::string& file, const ReaderOptions& options, char delimiter)
      : Reader(file, options.labels),
        rows_(std::move(source), file, delimiter, options.quotes, options.longest_record) {
    if (!rows_.next(header_))
      throw bytes::FormatError(file + ": is empty; expected a header with the names of the columns");
    begin_record(rows_.line());
    if (std::ranges::any_of(header_, [](const std::string& name) { return name.find('\0') != name.npos; }))
      fail("has bytes of 0 where the names of the columns should be; it is no text, or only a part of it arrived");
    constexpr std::size_t kFewestOfSteps = 3;  // case, time and a channel
    may_be_steps_ = delimiter == ',' && header_.size() >= kFewestOfSteps;
    text_ = column(options.text);
    if (!text_) {
      text_ = column(options.text1);
      second_ = column(options.text2);
      // IMDb is found with the columns review and sentiment too.
      if (!(text_ && second_) && options.text == ReaderOptions().text) {
        text_ = column("review");
        second_.reset();
      }
      if (!text_ || (!second_ && header_[*text_] != "review")) {
        const std::string nor_both =
            ", nor both " + bytes::in_quotes(options.text1) + " and " + bytes::in_quotes(options.text2);
        fail_header(options.text, options.text1.empty() ? "" : nor_both, "text", options);
      }
    }
    if (options.labels != LabelUse::ignored)
      label_ = column(options.label);
    if (options.labels != LabelUse::ignored && !label_ && options.label == ReaderOptions().label)
      label_ = column("sentiment");
    if (options.labels == LabelUse::required && !label_) {
      fail_header(options.label, "", "label", options);
    }
  }

 protected:
  bool read(Example& example) override {
    if (!rows_.next(fields_))
      return false;
    begin_record(rows_.line());
    if (fields_.size() != header_.size()) {
      fail(rows_.count_fault(fields_.size(), header_.size()));
    }
    example.text.swap(fields_[*text_]);
    if (second_) {
      example.content = Content::pair;
      example.second.swap(fields_[*second_]);
    }
    if (label_)
      example.label = fields_[*label_];
    return true;
  }

  bool ended_in_feed() const {
    return rows_.ended_in_feed();
  }

 private:
  std::optional<std::size_t> column(const std::string& name) const {
    return rows_.column(header_, name);
  }

  // what: "text" or "label".
  [[noreturn]] void fail_header(const std::string& name, const std::string& nor, const std::string& what,
                                const ReaderOptions& options) const {
    const std::string& first = header_.front();
    std::string remedy = "rename the one that holds the " + what + ", or name it (data." + what + "_column, or --" +
                         what + " of dba data check)";
    std::string stripped;
    strip_listops(first, stripped);
    if (stripped.starts_with('[') && listops_fault(stripped).empty())
      remedy = "this is ListOps without its header: put the line Source, tab, Target in front of it";
    else if (header_.size() == 1 && first.find(';') != first.npos)
      remedy = "separate the fields by commas, not by semicolons";
    else if (header_.size() == 1 && first.find('\t') != first.npos)
      remedy = "fields separated by tabs are of the format tsv";
    else if (options.text1.empty())
      remedy = "the format has " + bytes::in_quotes(options.text) + " and " + bytes::in_quotes(options.label);
    else if (may_be_steps_ && what == "text" && options.text == ReaderOptions().text)
      remedy +=
          "; if the rows are the time steps of series, set data.format=csv_long (or --format csv_long) and name "
          "the columns of the series' number and of the time with data.case_column and data.time_column";
    fail("the header has no column " + bytes::in_quotes(name) + nor + "; the columns are " +
         quoted_list(header_, kMostColumns) + "; " + remedy);
  }

  TableRows rows_;
  std::vector<std::string> header_;
  std::vector<std::string> fields_;
  bool may_be_steps_ = false;  // a table of time steps under other names
  std::optional<std::size_t> text_;
  std::optional<std::size_t> second_;
  std::optional<std::size_t> label_;
};

class ListOpsReader : public TableReader {
 public:
  using TableReader::TableReader;

 protected:
  bool read(Example& example) override {
    if (!TableReader::read(example))
      return false;
    strip_listops(example.text, stripped_);
    example.text.swap(stripped_);
    constexpr const char* kRemedy =
        "; the file is damaged: fetch it again, or make it with dba generate listops (data of one's own with the "
        "columns "
        "Source and Target: data.format=tsv, or --format of dba data check)";
    if (const std::string fault = listops_fault(example.text); !fault.empty())
      fail("is no expression of digits, [MIN, [MAX, [MED, [SM and ]: " + fault + kRemedy);
    if (example.label && example.label->empty() && !ended_in_feed())
      fail("has no label and no line end: the file is cut short; fetch it again, or make it with dba generate listops");
    const std::string label = example.label.value_or("");
    if (!label.empty() && (label.size() > 1 || label[0] < '0' || label[0] > '9'))
      fail("the label is " + bytes::in_quotes(label) + ", expected 0 to 9" + kRemedy);
    return true;
  }

 private:
  std::string stripped_;
};

}  // namespace

std::unique_ptr<Reader> open_table(std::unique_ptr<ByteSource> source, const std::string& file,
                                   const ReaderOptions& options, char delimiter) {
  return std::make_unique<TableReader>(std::move(source), file, options, delimiter);
}

std::unique_ptr<Reader> open_listops(std::unique_ptr<ByteSource> source, const std::string& file,
                                     const ReaderOptions& options) {
  ReaderOptions columns = options;
  columns.text = "Source";
  columns.label = "Target";
  columns.text1 = columns.text2 = "";
  return std::make_unique<ListOpsReader>(std::move(source), file, columns, '\t');
}

}  // namespace dba::data

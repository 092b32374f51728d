#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dba/data/example.h"

namespace dba::data {

enum class LabelUse {
  required,  ///< a record without a label is an error
  optional,  ///< as they come
  ignored,   ///< not looked at, as for prediction
};

struct ReaderOptions {
  /// A name of `formats()`; empty: by the file's extension.
  std::string format;
  /// Columns of a table, keys of a JSON object.
  std::string text = "text";
  std::string text1 = "text1";
  std::string text2 = "text2";
  std::string label = "label";
  /// Columns of a table of time steps.
  std::string case_column = "case";
  std::string time_column = "time";
  LabelUse labels = LabelUse::required;
  /// Whether double quotes enclose fields of a table (RFC 4180). Without, a quote is a byte like any other.
  bool quotes = true;
  /// A record of more bytes is an error.
  std::size_t longest_record = std::size_t{256} << 20;
  /// Pixels each way that the pictures of a Pathfinder folder must have; 0: 32 where a folder of its path is called
  /// pathfinder32, at least 32 elsewhere.
  std::size_t side = 0;
};

/// What was put right on the way.
struct Repairs {
  std::size_t missing_values = 0;  ///< cells of series that were NaN or null and have been interpolated
  std::size_t series = 0;          ///< series that had such cells
  std::size_t empty_channels = 0;  ///< channels without any value in a series, NaN
};

/// Records in order, one in memory at a time. What holds for every format is checked here: one content and one number
/// of channels in a file, finite numbers, labels where they are required, at least one record. Missing values of a
/// series are interpolated over time, those before the first value and after the last take its value, and a channel
/// without any becomes 0; all are counted.
class Reader {
 public:
  /// file: what errors name.
  Reader(std::string file, LabelUse labels);
  virtual ~Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// False at the end. Throws bytes::FormatError, with file and line, for a bad record; the next call goes on behind
  /// it.
  bool next(Example& example);

  const std::string& file() const {
    return file_;
  }
  /// Where the last record begins, from 1.
  std::size_t line() const {
    return line_;
  }
  /// "data.jsonl:12"; of a folder, the file in it.
  std::string place() const;
  /// Records in the whole source, where they are known without reading it.
  virtual std::optional<std::size_t> total() const {
    return std::nullopt;
  }
  /// Classes that the source lists apart from its records, as the header of a `.ts` file may; empty: it lists none.
  virtual std::vector<std::string> listed_classes() const {
    return {};
  }
  /// What the source has that makes it look unfinished, though every record of it can be read: "5 pictures, …"; empty:
  /// nothing. To be asked when everything has been read.
  virtual std::string doubt() const {
    return "";
  }
  /// The same of its end alone, which a right number of records would answer for: "no line end behind …".
  virtual std::string doubt_of_end() const {
    return "";
  }
  /// From the first call of next(), hands out only records begin … end − 1 of the source, counted from 0.
  void restrict_to(std::size_t begin, std::size_t end) {
    begin_ = begin;
    end_ = end;
  }
  const Repairs& repairs() const {
    return repairs_;
  }
  /// Records handed out.
  std::size_t count() const {
    return count_;
  }

 protected:
  /// Fills an empty example and calls `begin_record`; missing values of a series are NaN. False at the end. After a
  /// FormatError the next call must go on behind the bad record: it may never stand still.
  virtual bool read(Example& example) = 0;

  void begin_record(std::size_t line) {
    line_ = line;
  }
  /// Of a source of several files: the one that the next records stand in.
  void enter(std::string file) {
    current_ = std::move(file);
    line_ = 0;
  }
  LabelUse labels() const {
    return labels_;
  }
  /// Throws bytes::FormatError: place and reason.
  [[noreturn]] void fail(const std::string& reason) const;

 private:
  void check_series(Example& example);
  bool read_counted(Example& example);

  std::string file_;
  std::string current_;  // the file in a folder
  LabelUse labels_;
  std::size_t line_ = 0;
  std::size_t count_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = std::numeric_limits<std::size_t>::max();
  std::size_t position_ = 0;  // of the next record in the source
  bool met_error_ = false;
  std::optional<Content> content_;
  std::size_t channels_ = 0;
  Repairs repairs_;
};

}  // namespace dba::data

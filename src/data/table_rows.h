#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "line_reader.h"

namespace dba::data {

/// So many columns of a header are named in an error.
inline constexpr std::size_t kMostColumns = 20;

/// Rows of a table after RFC 4180: fields between delimiters, those in double quotes may hold delimiters, line ends and
/// doubled quotes. Lines end in LF or CR LF; empty ones are passed over.
class TableRows {
 public:
  TableRows(std::unique_ptr<ByteSource> source, std::string file, char delimiter, bool quotes, std::size_t longest_row);

  /// False at the end. Throws bytes::FormatError for a broken quote or a row that is too long; the next call goes on
  /// with the line after.
  bool next(std::vector<std::string>& fields);

  /// Which field of the last row, a header, has this name; nothing for an empty name and where none has. Throws
  /// bytes::FormatError where two have.
  std::optional<std::size_t> column(const std::vector<std::string>& header, const std::string& name) const;

  /// Why the last row, of so many fields, does not fit a header of so many.
  std::string count_fault(std::size_t fields, std::size_t header) const;

  /// Whether the last row had its line feed; only the end of the file may lack it.
  bool ended_in_feed() const {
    return lines_.ended_in_feed();
  }

  /// Where the last row begins, from 1.
  std::size_t line() const {
    return line_;
  }

 private:
  void quoted_field(std::string_view& rest, std::string& field);
  [[noreturn]] void fail(std::size_t line, const std::string& reason) const;

  LineReader lines_;
  std::string file_;
  char delimiter_;
  bool quotes_;
  std::size_t longest_row_;
  std::size_t line_ = 0;
};

}  // namespace dba::data

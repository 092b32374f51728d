#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dba/data/byte_source.h"

namespace dba::data {

/// Lines of any bytes. Memory grows with the longest line met, never beyond the bound.
class LineReader {
 public:
  /// file: what errors name.
  LineReader(std::unique_ptr<ByteSource> source, std::string file, std::size_t longest_line);

  /// The next line without its line feed (a carriage return before it stays), valid until the next call; false at the
  /// end. A byte-order mark at the start of the file is passed over. Throws bytes::FormatError for a line that is too
  /// long, after which there are no more.
  bool next(std::string_view& line);

  /// Of the last line, from 1; 0 before the first.
  std::size_t number() const {
    return number_;
  }

  /// Whether the last line had its line feed; only the end of the file may lack it.
  bool ended_in_feed() const {
    return ended_in_feed_;
  }

 private:
  bool fill();

  std::unique_ptr<ByteSource> source_;
  std::string file_;
  std::size_t longest_line_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // of what has not been handed out
  std::size_t end_ = 0;
  bool ended_ = false;
  bool ended_in_feed_ = false;
  std::size_t number_ = 0;
};

/// Without the carriage return at its end, if it has one.
std::string_view without_return(std::string_view line);

}  // namespace dba::data

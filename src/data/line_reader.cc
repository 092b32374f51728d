#include "line_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "dba/bytes/errors.h"

namespace dba::data {
namespace {

constexpr std::size_t kFirstBuffer = std::size_t{64} << 10;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

LineReader::LineReader(std::unique_ptr<ByteSource> source, std::string file, std::size_t longest_line)
    : source_(std::move(source)), file_(std::move(file)), longest_line_(longest_line), buffer_(kFirstBuffer) {}

// More bytes behind those that are left; false at the end of the source.
bool LineReader::fill() {
  if (ended_)
    return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size())
    buffer_.resize(2 * buffer_.size());
  const std::size_t count = source_->read({buffer_.data() + end_, buffer_.size() - end_});
  end_ += count;
  ended_ = count == 0;
  return !ended_;
}

bool LineReader::next(std::string_view& line) {
  std::size_t searched = 0;
  std::size_t length = 0;
  bool has_end = false;
  while (true) {
    const char* const start = buffer_.data() + begin_;
    const std::size_t available = end_ - begin_;
    if (available > searched) {
      if (const void* const feed = std::memchr(start + searched, '\n', available - searched)) {
        length = static_cast<std::size_t>(static_cast<const char*>(feed) - start);
        has_end = true;
        break;
      }
    }
    searched = length = available;
    if (length > longest_line_ || !fill())
      break;
  }
  if (!has_end && length == 0)
    return false;
  ++number_;
  if (length > longest_line_) {
    ended_ = true;
    begin_ = end_ = 0;
    throw bytes::FormatError(file_ + ":" + std::to_string(number_) + ": a line of more than " +
                             std::to_string(longest_line_) + " bytes; split it or raise longest_record");
  }
  line = {buffer_.data() + begin_, length};
  begin_ += length + (has_end ? 1 : 0);
  ended_in_feed_ = has_end;
  if (number_ == 1 && (line.starts_with("\xff\xfe") || line.starts_with("\xfe\xff"))) {
    ended_ = true;
    begin_ = end_ = 0;
    throw bytes::FormatError(file_ + ":1: the text is UTF-16; save it as UTF-8");
  }
  if (number_ == 1 && line.starts_with(kByteOrderMark))
    line.remove_prefix(kByteOrderMark.size());
  return true;
}

std::string_view without_return(std::string_view line) {
  if (line.ends_with('\r'))
    line.remove_suffix(1);
  return line;
}

}  // namespace dba::data

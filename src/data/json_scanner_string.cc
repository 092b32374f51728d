#include "dba/bytes/errors.h"
#include "json_scanner.h"

/// The strings of a JsonScanner and their escapes.
namespace dba::data {
namespace {

void append_utf8(unsigned code, std::string& value) {
  const auto put = [&value](unsigned byte) { value += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  }
}

}  // namespace

unsigned JsonScanner::hex4() {
  unsigned code = 0;
  for (int i = 0; i < 4; ++i, ++position_) {
    const char c = position_ < text_.size() ? text_[position_] : '\0';
    if (c >= '0' && c <= '9')
      code = code * 16 + static_cast<unsigned>(c - '0');
    else if (c >= 'a' && c <= 'f')
      code = code * 16 + static_cast<unsigned>(c - 'a' + 10);
    else if (c >= 'A' && c <= 'F')
      code = code * 16 + static_cast<unsigned>(c - 'A' + 10);
    else
      fail("\\u needs four hexadecimal digits");
  }
  return code;
}

// Behind the backslash.
void JsonScanner::escape(std::string& value) {
  if (position_ >= text_.size())
    fail("the string does not end");
  const char c = text_[position_++];
  switch (c) {
    case '"':
    case '\\':
    case '/':
      value += c;
      return;
    case 'b':
      value += '\b';
      return;
    case 'f':
      value += '\f';
      return;
    case 'n':
      value += '\n';
      return;
    case 'r':
      value += '\r';
      return;
    case 't':
      value += '\t';
      return;
    case 'u':
      break;
    default:
      fail("unknown escape \\" + bytes::in_quotes({&c, 1}));
  }
  const unsigned code = hex4();
  if (code >= 0xdc80 && code <= 0xdcff) {
    value += static_cast<char>(code - 0xdc00);  // a byte that was no UTF-8
  } else if (code >= 0xd800 && code <= 0xdbff) {
    if (!text_.substr(position_).starts_with("\\u"))
      fail("the first half of a surrogate pair without the second");
    position_ += 2;
    const unsigned low = hex4();
    if (low < 0xdc00 || low > 0xdfff)
      fail("the first half of a surrogate pair without the second");
    append_utf8(0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00), value);
  } else if (code >= 0xdc00 && code <= 0xdfff) {
    fail("the second half of a surrogate pair without the first");
  } else {
    append_utf8(code, value);
  }
}

void JsonScanner::string(std::string& value) {
  value.clear();
  if (peek() != '"')
    fail("expected a string, found " + describe_next());
  ++position_;
  while (true) {
    std::size_t end = position_;
    while (end < text_.size() && text_[end] != '"' && text_[end] != '\\' &&
           static_cast<unsigned char>(text_[end]) >= 0x20)
      ++end;
    value.append(text_, position_, end - position_);
    position_ = end;
    if (position_ >= text_.size())
      fail("the string does not end");
    const char c = text_[position_];
    if (c == '"') {
      ++position_;
      return;
    }
    if (c != '\\')
      fail("a control character in a string; write it as \\n, \\t or \\u00..");
    ++position_;
    escape(value);
  }
}

}  // namespace dba::data

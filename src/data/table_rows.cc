#include "table_rows.h"

#include <algorithm>
#include <utility>

#include "bytes/count.h"
#include "dba/bytes/errors.h"

namespace dba::data {

TableRows::TableRows(std::unique_ptr<ByteSource> source, std::string file, char delimiter, bool quotes,
                     std::size_t longest_row)
    : lines_(std::move(source), file, longest_row),
      file_(std::move(file)),
      delimiter_(delimiter),
      quotes_(quotes),
      longest_row_(longest_row) {}

void TableRows::fail(std::size_t line, const std::string& reason) const {
  throw bytes::FormatError(file_ + ":" + std::to_string(line) + ": " + reason);
}

// rest: behind the opening quote; afterwards behind the closing one, perhaps lines further down.
void TableRows::quoted_field(std::string_view& rest, std::string& field) {
  const std::size_t opened = lines_.number();
  while (true) {
    const std::size_t quote = rest.find('"');
    if (quote != rest.npos) {
      field.append(rest, 0, quote);
      rest.remove_prefix(quote + 1);
      if (!rest.starts_with('"'))
        return;
      field += '"';
      rest.remove_prefix(1);
      continue;
    }
    field.append(rest);
    field += '\n';
    if (field.size() > longest_row_) {
      fail(opened, "a quoted field of more than " + std::to_string(longest_row_) +
                       " bytes begins here; close the quote or raise longest_record");
    }
    if (!lines_.next(rest))
      fail(opened,
           "the quote that opens here is never closed; the file is cut short, or a quote inside a field is not "
           "written twice");
  }
}

bool TableRows::next(std::vector<std::string>& fields) {
  std::string_view rest;
  do {
    if (!lines_.next(rest))
      return false;
  } while (without_return(rest).empty());
  line_ = lines_.number();
  std::size_t count = 0;
  std::size_t bytes = 0;
  while (true) {
    if (count == fields.size())
      fields.emplace_back();
    std::string& field = fields[count++];
    field.clear();
    bool more = false;
    if (quotes_ && rest.starts_with('"')) {
      rest.remove_prefix(1);
      quoted_field(rest, field);
      more = rest.starts_with(delimiter_);
      if (!more && !without_return(rest).empty()) {
        fail(lines_.number(), "after the closing quote of field " + std::to_string(count) + " comes " +
                                  bytes::in_quotes(rest.substr(0, 12)) + "; a quote inside a field is written twice");
      }
      rest.remove_prefix(more ? 1 : rest.size());
    } else {
      const std::size_t end = std::min(rest.find(delimiter_), rest.size());
      more = end < rest.size();
      field = more ? rest.substr(0, end) : without_return(rest);
      rest.remove_prefix(more ? end + 1 : rest.size());
    }
    bytes += field.size();
    if (bytes > longest_row_)
      fail(line_, "a row of more than " + std::to_string(longest_row_) + " bytes; raise longest_record");
    if (!more)
      break;
  }
  fields.resize(count);
  return true;
}

std::string TableRows::count_fault(std::size_t fields, std::size_t header) const {
  std::string fault = "has " + bytes::counted(fields, "field") + ", the header " + std::to_string(header);
  if (fields < header && !lines_.ended_in_feed())
    return fault + ", and no line end: the file is cut short; fetch or make it again";
  if (delimiter_ == '\t')
    return fault + "; a tab or a line end inside a field must become a space";
  return fault + (quotes_ ? "; a field that holds a comma or a line end stands in double quotes"
                          : "; a comma or a line end inside a field must become another sign");
}

std::optional<std::size_t> TableRows::column(const std::vector<std::string>& header, const std::string& name) const {
  const auto found = std::ranges::find(header, name);
  if (name.empty() || found == header.end())
    return std::nullopt;
  if (std::find(found + 1, header.end(), name) != header.end())
    fail(line_, "the header has the column " + bytes::in_quotes(name) + " twice");
  return static_cast<std::size_t>(found - header.begin());
}

}  // namespace dba::data

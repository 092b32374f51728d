#include "dba/data/data_path.h"

#include <charconv>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "bytes/count.h"
#include "dba/bytes/errors.h"
#include "folder_listing.h"

namespace dba::data {
namespace {

std::optional<std::uint64_t> take_number(std::string_view& rest) {
  std::uint64_t number = 0;
  const auto result = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (result.ec != std::errc{})
    return std::nullopt;
  rest.remove_prefix(static_cast<std::size_t>(result.ptr - rest.data()));
  return number;
}

// "80-90%" or "0-45000"; nothing for any other text, which belongs to the path.
std::optional<Part> parse_part(std::string_view text) {
  const auto begin = take_number(text);
  if (!begin || !text.starts_with('-'))
    return std::nullopt;
  text.remove_prefix(1);
  const auto end = take_number(text);
  if (!end || (!text.empty() && text != "%"))
    return std::nullopt;
  return Part{false, text == "%", *begin, *end};
}

}  // namespace

Part::Range Part::of(std::size_t total, const std::string& source) const {
  if (whole)
    return {0, total};
  const auto at = [&](std::uint64_t place) {
    return percent ? total / 100 * place + total % 100 * place / 100 : static_cast<std::size_t>(place);
  };
  const Range range{at(begin), at(end)};
  if (range.end > total) {
    throw bytes::FormatError(source + ": has " + bytes::counted(total, "record") + "; the part " +
                             std::to_string(begin) + "-" + std::to_string(end) +
                             " reaches beyond them; name a part within them");
  }
  if (range.begin == range.end) {
    throw bytes::FormatError(source + ": has " + bytes::counted(total, "record") + "; the part " +
                             std::to_string(begin) + "-" + std::to_string(end) + (percent ? "%" : "") +
                             " holds none of them; name a larger part");
  }
  return range;
}

DataPath DataPath::parse(const std::filesystem::path& text) {
  const std::string& name = text.native();
  const std::size_t at = name.rfind('@');
  if (at == std::string::npos || is_file(text) || is_folder(text))
    return {text, {}};
  const auto part = parse_part(std::string_view(name).substr(at + 1));
  if (!part)
    return {text, {}};
  if (part->begin >= part->end || (part->percent && part->end > 100)) {
    throw std::invalid_argument(name + ": the part behind @ must begin before it ends" +
                                (part->percent ? ", at 100% at most" : "") + ", as in FILE@80-90% or FILE@0-45000");
  }
  return {name.substr(0, at), *part};
}

}  // namespace dba::data

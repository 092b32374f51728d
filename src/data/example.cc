#include "dba/data/example.h"

namespace dba::data {

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::tokens:
      return "tokens";
    case Kind::pairs:
      return "pairs";
    case Kind::series:
      return "series";
  }
  return "";
}

std::string_view name_of(Content content) {
  switch (content) {
    case Content::text:
      return "text";
    case Content::pair:
      return "a pair of texts";
    case Content::integers:
      return "integers";
    case Content::series:
      return "a series";
  }
  return "";
}

std::optional<Kind> parse_kind(std::string_view name) {
  for (const Kind kind : {Kind::tokens, Kind::pairs, Kind::series}) {
    if (name_of(kind) == name)
      return kind;
  }
  return std::nullopt;
}

Kind kind_of(Content content) {
  switch (content) {
    case Content::pair:
      return Kind::pairs;
    case Content::series:
      return Kind::series;
    default:
      return Kind::tokens;
  }
}

void Example::clear() {
  content = Content::text;
  text.clear();
  second.clear();
  integers.clear();
  values.clear();
  channels = 0;
  label.reset();
}

}  // namespace dba::data

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dba/bytes/safetensors.h"

namespace dba::bytes {

/// One tensor as the header states it; its numbers have not been compared with the file.
struct HeaderEntry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // none negative, at most kMostDimensions
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct Header {
  std::vector<HeaderEntry> entries;
  Metadata metadata;
};

inline constexpr std::string_view kMetadataKey = "__metadata__";

/// Grammar only: JSON of the right nesting, types and keys, no name or key twice. Throws FormatError.
Header parse_header(std::string_view json, const std::string& source);

}  // namespace dba::bytes

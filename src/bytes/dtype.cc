#include "dba/bytes/dtype.h"

namespace dba::bytes {
namespace {

struct Description {
  std::string_view name;
  std::size_t size;
};

// In the order of the enumeration.
constexpr std::array<Description, kAllDTypes.size()> kDescriptions = {{
    {"BOOL", 1},
    {"U8", 1},
    {"I8", 1},
    {"F8_E5M2", 1},
    {"F8_E4M3", 1},
    {"I16", 2},
    {"U16", 2},
    {"F16", 2},
    {"BF16", 2},
    {"I32", 4},
    {"U32", 4},
    {"F32", 4},
    {"F64", 8},
    {"I64", 8},
    {"U64", 8},
}};

}  // namespace

std::size_t size_of(DType dtype) {
  return kDescriptions[static_cast<std::size_t>(dtype)].size;
}

std::string_view name_of(DType dtype) {
  return kDescriptions[static_cast<std::size_t>(dtype)].name;
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DType dtype : kAllDTypes) {
    if (name_of(dtype) == name)
      return dtype;
  }
  return std::nullopt;
}

}  // namespace dba::bytes

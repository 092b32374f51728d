#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dba/data/symbols.h"
#include "dba/data/tokeniser.h"

namespace dba::data {

static_assert(std::endian::native == std::endian::little, "cache files are little-endian and are mapped as they are");

inline constexpr std::array<char, 8> kCacheMagic = {'d', 'b', 'a', '-', 's', 'e', 't', '\n'};
/// Raise it with every change of the layout, of a reader or of a tokeniser: old caches are then built anew.
inline constexpr std::uint64_t kCacheVersion = 3;

/// Parts of the file in this order, each a multiple of 8 bytes long:
///   header; elements × element_size bytes of symbols (see symbol_layout) or values, zeros at the end;
///   examples × IndexEntry; channels × 2 doubles, means and deviations; encoding_size bytes of JSON, spaces at the end.
struct CacheHeader {
  std::array<char, 8> magic = kCacheMagic;
  std::uint64_t version = kCacheVersion;
  std::uint64_t checksum = 0;  ///< of what follows the header, then of the header with this field 0
  std::uint64_t fingerprint = 0;
  std::uint64_t examples = 0;
  std::uint64_t elements = 0;      ///< stored: CLS and EOS are not
  std::uint64_t element_size = 4;  ///< 1, 2 or 4 bytes
  std::uint64_t channels = 0;
  std::uint64_t encoding_size = 0;
  std::uint64_t cut = 0;
  std::uint64_t empty = 0;
  std::uint64_t missing_values = 0;
  std::uint64_t repaired_series = 0;
  std::uint64_t empty_channels = 0;
};
static_assert(sizeof(CacheHeader) == 14 * 8);

struct IndexEntry {
  std::uint64_t offset = 0;  ///< in elements
  std::uint32_t length = 0;  ///< symbols, CLS and EOS included, or time steps
  std::uint32_t second_length = 0;
  std::int32_t label = -1;
  std::uint32_t unused = 0;
};
static_assert(sizeof(IndexEntry) == 24);

/// As narrow as the vocabulary allows: a byte of text or a pixel takes a byte.
inline SymbolLayout symbol_layout(const Tokeniser& tokeniser) {
  const std::size_t contents = tokeniser.contents();
  return {static_cast<std::uint8_t>(contents <= 0x100     ? 1
                                    : contents <= 0x10000 ? 2
                                                          : 4),
          tokeniser.first_content(), tokeniser.cls().value_or(-1), tokeniser.eos().value_or(-1)};
}

/// CLS and EOS of a sequence.
inline std::uint32_t specials_of(const SymbolLayout& layout) {
  return (layout.cls >= 0 ? 1u : 0u) + (layout.eos >= 0 ? 1u : 0u);
}

}  // namespace dba::data

#pragma once

#include <cstdint>

namespace dba::zoo {

/// Entries of 16 bits in 16 bytes: products and attention on a GPU want rows that begin at multiples of so many.
inline constexpr int64_t kEntriesTogether = 8;

}  // namespace dba::zoo

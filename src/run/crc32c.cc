#include "crc32c.h"

#include <array>

namespace dba::run {
namespace {

using Table = std::array<std::uint32_t, 256>;

// tables[k][b]: what a byte b does to the remainder when k further bytes follow it.
constexpr std::array<Table, 8> make_tables() {
  constexpr std::uint32_t kReversedPolynomial = 0x82f63b78;
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit)
      remainder = remainder >> 1 ^ (remainder & 1 ? kReversedPolynomial : 0);
    tables[0][byte] = remainder;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 0xff];
  }
  return tables;
}

constexpr auto kTables = make_tables();

std::uint32_t load(const std::byte* bytes) {
  std::uint32_t word = 0;
  for (int i = 3; i >= 0; --i)
    word = word << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return word;
}

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint32_t remainder = ~before;
  // Eight bytes at a time, each through the table of its place.
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    const std::uint32_t low = load(bytes.data()) ^ remainder;
    const std::uint32_t high = load(bytes.data() + 4);
    remainder = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^
                kTables[4][low >> 24] ^ kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^
                kTables[1][high >> 16 & 0xff] ^ kTables[0][high >> 24];
  }
  for (const std::byte byte : bytes)
    remainder = remainder >> 8 ^ kTables[0][(remainder ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
  return ~remainder;
}

}  // namespace dba::run

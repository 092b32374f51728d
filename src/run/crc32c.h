#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dba::run {

/// The checksum CRC-32C (Castagnoli). `before` is the checksum of the bytes that came before these.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace dba::run

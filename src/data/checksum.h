#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "dba/data/random.h"

namespace dba::data {

/// A running checksum that notices damage, not forgery. Pieces one after the other give the same result as the whole
/// if all but the last are multiples of 8 bytes.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes) {
    while (bytes.size() >= sizeof(std::uint64_t)) {
      std::uint64_t word;
      std::memcpy(&word, bytes.data(), sizeof word);
      add_word(word);
      bytes = bytes.subspan(sizeof word);
    }
    if (!bytes.empty()) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data(), bytes.size());
      add_word(word);
      add_word(bytes.size());
    }
  }

  std::uint64_t value() const {
    return mix_bits(state_);
  }

 private:
  void add_word(std::uint64_t word) {
    state_ = (state_ ^ word) * 0x9fb21c651e98df25u;
    state_ ^= state_ >> 32;
  }

  std::uint64_t state_ = 0x243f6a8885a308d3u;
};

}  // namespace dba::data

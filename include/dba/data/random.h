#pragma once

#include <cstdint>

namespace dba::data {

/// Spreads every bit of the argument over the whole result, one to one (the finaliser of SplitMix64).
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// A counter-based generator: word i of stream s is a function of (seed, s, i) alone. Unlike the distributions of the
/// standard library it draws the same numbers everywhere.
class CounterRandom {
 public:
  explicit constexpr CounterRandom(std::uint64_t seed, std::uint64_t stream = 0)
      : position_(mix_bits(mix_bits(seed + kStep) + mix_bits(stream ^ 0x6a09e667f3bcc909u))) {}

  constexpr std::uint64_t next() {
    position_ += kStep;
    return mix_bits(position_);
  }

  /// Uniform over 0 … bound − 1; bound is positive.
  constexpr std::uint32_t below(std::uint32_t bound) {
    // Multiply and take the upper half; the few products that would favour some results are drawn again.
    const std::uint32_t unfair = (0u - bound) % bound;
    while (true) {
      const std::uint64_t product = (next() >> 32) * bound;
      if (static_cast<std::uint32_t>(product) >= unfair)
        return static_cast<std::uint32_t>(product >> 32);
    }
  }

  /// Uniform over [0, 1), a multiple of 2⁻⁵³.
  constexpr double uniform() {
    return static_cast<double>(next() >> 11) * 0x1p-53;
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15u;
  std::uint64_t position_;
};

}  // namespace dba::data

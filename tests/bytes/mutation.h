#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

namespace dba::bytes {

using Bytes = std::vector<std::byte>;

/// Damages files in the ways that find faults in readers: flipped bits, foreign bytes, cuts, pieces of another file
/// and, in formats that carry text, other numbers. The same seed gives the same damage everywhere: only the generator
/// itself is used, whose sequence the standard fixes, no distribution.
class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t bound) {
    return bound == 0 ? 0 : static_cast<std::size_t>(random_() % bound);
  }

  const Bytes& pick(const std::vector<Bytes>& files) {
    return files[below(files.size())];
  }

  /// One to four damages, one after the other.
  Bytes mutate(Bytes file, const Bytes& other) {
    const std::size_t count = 1 + below(4);
    for (std::size_t i = 0; i < count; ++i)
      damage(file, other);
    return file;
  }

 private:
  using Position = Bytes::difference_type;

  void damage(Bytes& file, const Bytes& other) {
    switch (below(7)) {
      case 0:
        if (!file.empty())
          file[below(file.size())] ^= static_cast<std::byte>(1u << below(8));
        return;
      case 1:
        if (!file.empty())
          file[below(file.size())] = static_cast<std::byte>(random_());
        return;
      case 2:
        file.resize(below(file.size() + 1));
        return;
      case 3: {
        const std::size_t begin = below(file.size() + 1);
        const std::size_t length = below(std::min<std::size_t>(file.size() - begin, 64) + 1);
        file.erase(at(file, begin), at(file, begin + length));
        return;
      }
      case 4: {
        const std::size_t begin = below(other.size() + 1);
        const std::size_t length = below(std::min<std::size_t>(other.size() - begin, 64) + 1);
        const auto from = other.begin() + static_cast<Position>(begin);
        file.insert(at(file, below(file.size() + 1)), from, from + static_cast<Position>(length));
        return;
      }
      default:
        edit_number(file);
    }
  }

  // Another number in the place of a run of digits.
  void edit_number(Bytes& file) {
    static constexpr std::array<std::string_view, 16> kNumbers = {"0",
                                                                  "1",
                                                                  "2",
                                                                  "3",
                                                                  "4",
                                                                  "8",
                                                                  "-1",
                                                                  "007",
                                                                  "1.5",
                                                                  "1e9",
                                                                  "4294967296",
                                                                  "9223372036854775807",
                                                                  "9223372036854775808",
                                                                  "18446744073709551615",
                                                                  "18446744073709551616",
                                                                  "1099511627776,1099511627776"};
    const auto is_digit = [](std::byte b) { return b >= std::byte{'0'} && b <= std::byte{'9'}; };
    std::vector<std::size_t> starts;
    for (std::size_t i = 0; i < file.size(); ++i) {
      if (is_digit(file[i]) && (i == 0 || !is_digit(file[i - 1])))
        starts.push_back(i);
    }
    if (starts.empty())
      return;
    const std::size_t begin = starts[below(starts.size())];
    std::size_t end = begin;
    while (end < file.size() && is_digit(file[end]))
      ++end;
    const std::string_view number = kNumbers[below(kNumbers.size())];
    file.erase(at(file, begin), at(file, end));
    std::size_t position = begin;
    for (const char c : number)
      file.insert(at(file, position++), static_cast<std::byte>(c));
  }

  static Bytes::iterator at(Bytes& file, std::size_t position) {
    return file.begin() + static_cast<Position>(position);
  }

  std::mt19937_64 random_;
};

}  // namespace dba::bytes

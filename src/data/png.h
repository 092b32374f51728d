#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dba::data {

/// Pixels row by row, `channels` bytes each: 1 grey, 2 grey and opacity, 3 red, green, blue, 4 these and opacity.
struct Picture {
  std::size_t width = 0;
  std::size_t height = 0;
  std::size_t channels = 0;
  std::vector<std::uint8_t> pixels;
};

/// Reads a PNG image of up to 8 bits a channel; a palette becomes colours. Throws bytes::FormatError, which begins with
/// `place`: damaged, cut short, of another kind, of 16 bits, or larger than 4,096 × 4,096. Values are as stored, except
/// that libpng turns those of a file with a gamma other than sRGB's into sRGB.
Picture read_png(std::span<const std::uint8_t> file, const std::string& place);

/// The bytes of a PNG file.
std::vector<std::uint8_t> write_png(const Picture& picture);

}  // namespace dba::data

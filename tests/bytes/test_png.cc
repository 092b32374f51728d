#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "bytes/sha256.h"
#include "data/png.h"
#include "dba/bytes/errors.h"
#include "mutation.h"

namespace dba::data {
namespace {

using bytes::FormatError;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// 30 × 16 grey pixels, a code of its own, all five filters, the data in two chunks.
constexpr const char* kPicture =
    "iVBORw0KGgoAAAANSUhEUgAAAB4AAAAQCAAAAAAkUZAOAAAAA3RFWHRhAGLcSaI7AAAAMklEQVR42nXQrXHDQBDF8aePCdoC"
    "VMCCG6NFQVuACnABAoZbgEu4MRY00Bi5hCvD0OBQ0BVwBZKuO+UAAACfSURBVCRScmzTwHu/+QO0QGfoGwTIGzzDFmCCXcHX"
    "js9RSqHzppT0HqhCnoE5Wd0wlb5GmwvbJjkRB1XoM1BOYhvPxYZqdcVHslPiZZWvF+lFOesjUMlyG8V+p1b87FDcv3LZd44v"
    "+CTIdJg7uKS/ndL7pBpxmIfFJV3487V7xuiSKOfD/A+pZezgklrG3ie1jINPahlHc0ktI3xSy/gNLGSpzw3/gt0AAAAASUVO"
    "RK5CYII=";

std::uint8_t picture_value(std::size_t x, std::size_t y) {
  return static_cast<std::uint8_t>((x * x + 3 * y * y + x * y) % 11 * ((x + y) % 3) * 12);
}

std::vector<std::uint8_t> from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::uint8_t> bytes;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == kDigits.npos)
      break;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    held += 6;
    if (held >= 8) {
      held -= 8;
      bytes.push_back(static_cast<std::uint8_t>(bits >> held));
    }
  }
  return bytes;
}

TEST(Png, PicturesOfOtherProgramsAreRead) {
  const Picture picture = read_png(from_base64(kPicture), "here");
  ASSERT_EQ(picture.width, 30u);
  ASSERT_EQ(picture.height, 16u);
  ASSERT_EQ(picture.channels, 1u);
  for (std::size_t y = 0; y < 16; ++y) {
    for (std::size_t x = 0; x < 30; ++x)
      ASSERT_EQ(picture.pixels[y * 30 + x], picture_value(x, y)) << x << ", " << y;
  }
}

TEST(Png, DamageIsNoticed) {
  const std::vector<std::uint8_t> sound = from_base64(kPicture);
  for (std::size_t i = 0; i < sound.size(); ++i) {
    std::vector<std::uint8_t> damaged = sound;
    damaged[i] ^= 0x04;
    EXPECT_THROW(read_png(damaged, "here"), FormatError) << "byte " << i;
    EXPECT_THROW(read_png(std::span(sound).first(i), "here"), FormatError) << "first " << i;
  }
  EXPECT_THAT([&] { read_png(std::span(sound).first(100), "a.png"); },
              ThrowsMessage<FormatError>("a.png: the PNG image is cut short; fetch it again"));
}

TEST(Png, WhatIsWrittenComesBack) {
  Picture picture{7, 300, 3, {}};
  for (std::size_t i = 0; i < 7 * 300 * 3; ++i)
    picture.pixels.push_back(i % 1000 < 700 ? 5 : static_cast<std::uint8_t>(i * i));
  const auto file = write_png(picture);
  EXPECT_LT(file.size(), picture.pixels.size());
  const Picture again = read_png(file, "here");
  EXPECT_EQ(again.channels, 3u);
  EXPECT_EQ(again.pixels, picture.pixels);
}

// A PNG image of these chunks, whose checksums are right whatever they hold.
std::vector<std::uint8_t> with_checksums(const std::vector<std::pair<std::string, std::string>>& chunks) {
  std::string file = "\x89PNG\r\n\x1a\n";
  const auto append_number = [&](std::uint32_t number) {
    for (const int shift : {24, 16, 8, 0})
      file += static_cast<char>(number >> shift);
  };
  for (const auto& [kind, content] : chunks) {
    append_number(static_cast<std::uint32_t>(content.size()));
    std::uint32_t sum = 0xffffffffu;
    for (const char c : kind + content) {
      sum ^= static_cast<std::uint8_t>(c);
      for (int bit = 0; bit < 8; ++bit)
        sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
    }
    file += kind + content;
    append_number(~sum);
  }
  return {file.begin(), file.end()};
}

// The header of an image: its sizes as four bytes each, bits a channel, kind of colour, no interlacing.
std::string png_header(const std::string& sizes, char bits, char colour) {
  return sizes + std::string{bits, colour, 0, 0, 0};
}

TEST(Png, OtherSizesAndDepthsAreRefusedBeforeTheyAreAllocated) {
  const auto expect = [](const std::string& header, const std::string& message) {
    const auto file = with_checksums({{"IHDR", header}, {"IDAT", "x"}, {"IEND", ""}});
    EXPECT_THAT([&] { read_png(file, "a.png"); },
                ThrowsMessage<FormatError>(AllOf(testing::StartsWith("a.png: the PNG image "), HasSubstr(message))));
  };
  expect(png_header({0, 0, 16, 1, 0, 0, 0, 1}, 8, 0), "is 4097 × 1 pixels, expected 1 to 4096 each way");
  expect(png_header({0, 1, 0, 0, 0, 1, 0, 0}, 8, 6), "is 65536 × 65536 pixels");
  expect(png_header({127, -1, -1, -1, 127, -1, -1, -1}, 8, 6), "fetch it again");
  expect(png_header({0, 0, 0, 0, 0, 0, 0, 1}, 8, 0), "fetch it again");
  expect(png_header({0, 0, 0, 1, 0, 0, 0, 1}, 16, 0), "has 16 bits a channel, expected at most 8; convert it");
  EXPECT_THAT([] { read_png(std::vector<std::uint8_t>(100, 'x'), "a.png"); },
              ThrowsMessage<FormatError>(HasSubstr("a.png: is no PNG image")));
}

TEST(Png, APaletteBecomesColours) {
  // Two pixels of four bits, entries 1 and 0, in a stored block of zlib.
  const std::string row{0x78, 0x01, 1, 2, 0, -3, -1, 0, 0x10, 0, 0x12, 0, 0x11};
  const auto file = with_checksums({{"IHDR", png_header({0, 0, 0, 2, 0, 0, 0, 1}, 4, 3)},
                                    {"PLTE", {1, 2, 3, 4, 5, 6}},
                                    {"IDAT", row},
                                    {"IEND", ""}});
  const Picture picture = read_png(file, "here");
  EXPECT_EQ(picture.channels, 3u);
  EXPECT_THAT(picture.pixels, ElementsAre(4, 5, 6, 1, 2, 3));
}

// The checks behind the checksum: damage inside the packed data only.
TEST(Png, UnpackingSurvivesAnyDamage) {
  const std::vector<std::uint8_t> picture = from_base64(kPicture);
  const auto text = [&](std::size_t begin, std::size_t size) {
    const auto from = picture.begin() + static_cast<std::ptrdiff_t>(begin);
    return std::string(from, from + static_cast<std::ptrdiff_t>(size));
  };
  // 8 of the signature, 25 of the header, 15 of a comment, and the data: 50 bytes and 159.
  const std::string header = text(16, 13);
  const std::string packed = text(56, 50) + text(118, 159);
  ASSERT_EQ(read_png(with_checksums({{"IHDR", header}, {"IDAT", packed}, {"IEND", ""}}), "here").pixels.size(), 480u);
  bytes::Bytes sound;
  for (const char c : packed)
    sound.push_back(static_cast<std::byte>(c));
  bytes::Mutator mutator(21);
  std::size_t refused = 0;
  constexpr std::size_t kIterations = 5000;
  for (std::size_t i = 0; i < kIterations; ++i) {
    std::string damaged;
    for (const std::byte byte : mutator.mutate(sound, sound))
      damaged += static_cast<char>(byte);
    try {
      EXPECT_EQ(read_png(with_checksums({{"IHDR", header}, {"IDAT", damaged}, {"IEND", ""}}), "here").pixels.size(),
                480u);
    } catch (const FormatError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, kIterations * 9 / 10);
}

TEST(Sha256, IsWhatOtherProgramsPrint) {
  bytes::Sha256 empty;
  EXPECT_EQ(empty.finish(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  bytes::Sha256 abc;
  for (const char c : std::string("abc"))
    abc.add(std::as_bytes(std::span(&c, 1)));
  EXPECT_EQ(abc.finish(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string long_text(1'000'000, 'a');
  bytes::Sha256 many;
  many.add(std::as_bytes(std::span(long_text)));
  EXPECT_EQ(many.finish(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace dba::data

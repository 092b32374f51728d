#include "png.h"

#include <png.h>

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>

#include "dba/bytes/errors.h"

namespace dba::data {
namespace {

constexpr std::array<std::uint8_t, 8> kSignature = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
// The last chunk, the same in every file: no content, and its checksum.
constexpr std::array<std::uint8_t, 12> kEnd = {0, 0, 0, 0, 'I', 'E', 'N', 'D', 0xae, 0x42, 0x60, 0x82};
constexpr std::size_t kMostPixels = 4096;

}  // namespace

Picture read_png(std::span<const std::uint8_t> file, const std::string& place) {
  const auto fail = [&](const std::string& reason) { throw bytes::FormatError(place + ": " + reason); };
  if (file.empty())
    fail("the file is empty; fetch it again, or remove what names it");
  if (file.size() < kSignature.size() || !std::ranges::equal(file.first(kSignature.size()), kSignature))
    fail("is no PNG image; convert it, or fetch it again");
  // libpng stops behind the last pixel, and calls every lack of bytes damage.
  if (std::ranges::search(file, kEnd).empty())
    fail("the PNG image is cut short; fetch it again");

  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, decltype(&png_image_free)> freed(&image, png_image_free);
  // A warning is a checksum of a chunk beside the pixels, or bytes that are left over: damage as well.
  const auto check_damage = [&] {
    if (image.warning_or_error != 0)
      fail("the PNG image is damaged (" + std::string(image.message) + "); fetch it again, or convert it");
  };
  png_image_begin_read_from_memory(&image, file.data(), file.size());
  check_damage();
  if (image.width > kMostPixels || image.height > kMostPixels) {
    fail("the PNG image is " + std::to_string(image.width) + " × " + std::to_string(image.height) +
         " pixels, expected 1 to 4096 each way; make it smaller");
  }
  if ((image.format & PNG_FORMAT_FLAG_LINEAR) != 0)
    fail("the PNG image has 16 bits a channel, expected at most 8; convert it");
  image.format &= PNG_FORMAT_FLAG_COLOR | PNG_FORMAT_FLAG_ALPHA;
  Picture picture{image.width, image.height, PNG_IMAGE_SAMPLE_CHANNELS(image.format), {}};
  picture.pixels.resize(PNG_IMAGE_SIZE(image));
  png_image_finish_read(&image, nullptr, picture.pixels.data(), 0, nullptr);
  check_damage();
  return picture;
}

std::vector<std::uint8_t> write_png(const Picture& picture) {
  constexpr std::array<png_uint_32, 4> kFormats = {PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB, PNG_FORMAT_RGBA};
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(picture.width);
  image.height = static_cast<png_uint_32>(picture.height);
  image.format = kFormats.at(picture.channels - 1);
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::vector<std::uint8_t> file(size);
  if (png_image_write_to_memory(&image, file.data(), &size, 0, picture.pixels.data(), 0, nullptr) == 0)
    throw std::runtime_error(std::string("write_png: ") + image.message);
  file.resize(size);
  return file;
}

}  // namespace dba::data

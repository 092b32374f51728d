#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>

#include "data/png.h"
#include "dba/bytes/errors.h"
#include "dba/data/pathfinder.h"
#include "mutation.h"
#include "read_text.h"
#include "scratch_folder.h"

namespace dba::data {
namespace {

using bytes::contents;
using bytes::FormatError;
using bytes::ScratchFolder;
using bytes::write;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Pathfinder, PicturesAreTheSameWhateverTheThreads) {
  const ScratchFolder folder;
  PathfinderOptions options;
  options.count = 300;
  options.threads = 1;
  write_pathfinder_records(folder / "one.bin", options);
  options.threads = 3;
  write_pathfinder_records(folder / "three.bin", options);
  EXPECT_EQ(std::filesystem::file_size(folder / "one.bin"), 300u * 1025);
  const std::string one = contents(folder / "one.bin");
  EXPECT_TRUE(one == contents(folder / "three.bin"));
  options.seed = 1;
  write_pathfinder_records(folder / "other.bin", options);
  EXPECT_FALSE(one == contents(folder / "other.bin"));
  const PathfinderPicture picture = draw_pathfinder({}, 299);
  EXPECT_TRUE(std::ranges::equal(picture.pixels, one.substr(299 * 1025 + 1),
                                 [](std::uint8_t a, char b) { return a == static_cast<std::uint8_t>(b); }));
}

double distance(PixelPlace a, PixelPlace b) {
  return std::hypot(a.row - b.row, a.column - b.column);
}

TEST(Pathfinder, PicturesAreWhatTheArenaSpecifies) {
  constexpr std::uint64_t kPictures = 300;
  int connected = 0;
  std::size_t distractors = 0;
  double bend = 0;
  int bends = 0;
  for (std::uint64_t number = 0; number < kPictures; ++number) {
    SCOPED_TRACE(number);
    const PathfinderPicture picture = draw_pathfinder({}, number);
    connected += picture.connected;
    ASSERT_LE(picture.distractors.size(), 5u);
    distractors += picture.distractors.size();
    for (const auto& distractor : picture.distractors)
      EXPECT_EQ(distractor.size(), 5u) << "both ends of the first of four paddles, one end of the others";
    for (const auto& contour : picture.contours) {
      ASSERT_EQ(contour.size(), 15u) << "fourteen paddles";
      for (std::size_t i = 2; i < contour.size(); ++i) {
        // Rounding up shortens steps up and to the left.
        const bool forth = contour[i].row > contour[i - 1].row || contour[i].column > contour[i - 1].column;
        EXPECT_GE(distance(contour[i], contour[i - 1]), forth ? 2.0 : 1.4);
        EXPECT_LE(distance(contour[i], contour[i - 1]), 6.5);
      }
      for (std::size_t i = 3; i < contour.size(); ++i) {
        const auto angle = [&](std::size_t k) {
          return std::atan2(contour[k].row - contour[k - 1].row, contour[k].column - contour[k - 1].column);
        };
        const double difference = std::abs(angle(i) - angle(i - 1));
        bend += std::min(difference, 2 * std::acos(-1.0) - difference);
        ++bends;
      }
    }
    EXPECT_NEAR(distance(picture.contours[0][0], picture.contours[1][0]), 7.0, 0.8);
    const PixelPlace beginning = picture.contours[0][0];
    for (const int place : {beginning.row, beginning.column}) {
      EXPECT_GE(place, 14);
      EXPECT_LT(place, 32 - 14);
    }
    // Contours begin up and to the left; steps are rounded up.
    const PixelPlace next = picture.contours[0][1];
    EXPECT_TRUE(next.row < beginning.row && next.column < beginning.column);
    // One disc where a contour begins, one where a contour ends: the same contour exactly where the label says so.
    bool found = false;
    for (const std::size_t one : {std::size_t{0}, std::size_t{1}}) {
      const std::size_t other = picture.connected ? one : 1 - one;
      found = found ||
              (picture.discs[0] == picture.contours[one].front() && picture.discs[1] == picture.contours[other].back());
    }
    EXPECT_TRUE(found);
    for (const PixelPlace disc : picture.discs)
      EXPECT_GE(picture.pixels[static_cast<std::size_t>(disc.row * 32 + disc.column)], 120);
    EXPECT_EQ(*std::ranges::max_element(picture.pixels), 255);
    EXPECT_EQ(*std::ranges::min_element(picture.pixels), 0);
  }
  // Three standard deviations of a fair coin.
  EXPECT_NEAR(connected, kPictures / 2.0, 3 * std::sqrt(kPictures / 4.0));
  // Five tries in any direction for each of five, and 31 directions of 360 are possible: (329/360)⁵ is 0.64.
  EXPECT_GT(static_cast<double>(distractors) / kPictures, 0.9);
  EXPECT_LT(static_cast<double>(distractors) / kPictures, 5 * (1 - 0.637));
  EXPECT_LT(bend / bends, 0.8) << "contours bend gently";
}

TEST(Pathfinder, EasierSetsHaveShorterContoursAndMoreDistractors) {
  PathfinderOptions options;
  options.contour_length = 6;
  std::size_t distractors = 0;
  for (std::uint64_t number = 0; number < 50; ++number) {
    const PathfinderPicture easy = draw_pathfinder(options, number);
    EXPECT_EQ(easy.contours[0].size(), 7u);
    EXPECT_LE(easy.distractors.size(), 10u);
    distractors += easy.distractors.size();
    for (const auto& distractor : easy.distractors)
      EXPECT_EQ(distractor.size(), 3u);
  }
  EXPECT_GT(distractors, 50u * 2);
  options.contour_length = 15;
  EXPECT_THROW(draw_pathfinder(options, 0), std::invalid_argument);
  options.count = 0;
  EXPECT_THROW(write_pathfinder_records("nowhere/a.bin", options), std::invalid_argument);
}

class PathfinderFolder : public testing::Test {
 protected:
  PathfinderFolder() {
    options_.count = 1003;
    options_.contour_length = 6;
    options_.threads = 2;
    write_pathfinder_folder(folder_.path(), options_);
  }
  PathfinderOptions options_;
  ScratchFolder folder_;
};

TEST_F(PathfinderFolder, ReadsAsTheRecordsDo) {
  EXPECT_EQ(recognise(folder_.path())->name, "pathfinder");
  write_pathfinder_records(folder_ / "same.bin", options_);
  const auto images = read_path(folder_.path());
  const auto records = read_path(folder_ / "same.bin");
  ASSERT_EQ(images.size(), 1003u);
  EXPECT_EQ(labels_of(images), labels_of(records));
  EXPECT_TRUE(std::ranges::equal(images, records, {}, &Example::integers, &Example::integers));
  EXPECT_EQ(read_path(folder_.path().string() + "@90-100%").front().integers, records[902].integers);
  write_pathfinder_sheet(folder_ / "sheet.png", options_, 2, 3);
  const std::string sheet = contents(folder_ / "sheet.png");
  const Picture picture = read_png({reinterpret_cast<const std::uint8_t*>(sheet.data()), sheet.size()}, "sheet");
  EXPECT_EQ(picture.width, 3 * 106u + 6);
  EXPECT_EQ(picture.height, 2 * 106u + 6);
}

TEST_F(PathfinderFolder, WhatIsWrongIsNamedByFileAndLine) {
  const auto first = folder_ / "imgs/0/sample_1.png";
  const std::string image = contents(first);
  const auto expect = [&](const std::string& message) {
    EXPECT_THAT([&] { read_path(folder_.path()); }, ThrowsMessage<FormatError>(HasSubstr(message)));
  };
  write(first, "");
  expect("metadata/0.npy:2: ");
  expect("sample_1.png: the file is empty");
  write(first, image.substr(0, image.size() / 2));
  expect("sample_1.png: the PNG image is cut short");
  const auto large = write_png({64, 64, 1, std::vector<std::uint8_t>(64 * 64)});
  write(first, {large.begin(), large.end()});
  expect("is 64 × 64 pixels, the images before it 32 × 32");
  const auto small = write_png({16, 32, 1, std::vector<std::uint8_t>(16 * 32)});
  write(first, {small.begin(), small.end()});
  expect("sample_1.png is 16 × 32 pixels, expected 32 × 32 at least");
  std::filesystem::remove(first);
  expect("sample_1.png, which is missing; unpack the archive again");
  write(folder_ / "metadata/1.npy", "imgs/1 sample_0.png 0 1\nimgs/1 sample_1.png 1\n");
  expect("metadata/1.npy:2: the fourth field is \"\", expected the label 0 or 1");
  write(folder_ / "metadata/1.npy", "\x93NUMPY\x01");
  expect("1.npy: is an array of NumPy");
  std::filesystem::remove_all(folder_ / "imgs");
  expect("the folder imgs is missing");
}

TEST_F(PathfinderFolder, SurvivesDamagedMetadata) {
  std::filesystem::remove(folder_ / "metadata/0.npy");
  bytes::Bytes sound;
  for (const char c : contents(folder_ / "metadata/1.npy"))
    sound.push_back(static_cast<std::byte>(c));
  bytes::Mutator mutator(5);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    const bytes::Bytes damaged = mutator.mutate(sound, sound);
    write(folder_ / "metadata/1.npy", {reinterpret_cast<const char*>(damaged.data()), damaged.size()});
    try {
      read_path(folder_.path());
    } catch (const FormatError&) {
      ++refused;
    } catch (const bytes::FileError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 30);
  EXPECT_LT(refused, 300);
}

}  // namespace
}  // namespace dba::data

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

namespace dba::data {

/// Rows and columns, from 0.
struct PixelPlace {
  int row = 0;
  int column = 0;
  bool operator==(const PixelPlace&) const = default;
};

/// Pictures of 32 × 32 as in Long-Range Arena's Pathfinder-32: two dashed contours that bend gently and do not touch,
/// short ones that distract, and two discs. Label 1: the discs lie on both ends of one contour; 0: on an end of each.
///
/// A contour is a chain of paddles of 2 pixels, gaps of 2 between them. The first paddles of the two begin 7 pixels
/// apart in the middle; the contours grow in turn. Where the next paddle points is drawn with probabilities
/// proportional to cos² of the bend, and to how free the place is. Paddles are drawn at twice the size and reduced
/// (Lanczos). A picture that cannot be finished is drawn anew.
///
/// As in the published generator, the first contour and the distractors begin in a direction between up and left: where
/// they draw another one, about eleven times of twelve, they find no place. A distractor has five tries.
struct PathfinderOptions {
  std::uint64_t seed = 0;
  std::size_t count = 200'000;
  /// Paddles of each of the two contours: 14 in the hard set, 9 in the intermediate, 6 in the easy one. Distractors
  /// have a third of that; 20 divided by their length are tried, and most of them fail: 1.2 a picture in the hard set.
  std::size_t contour_length = 14;
  /// 0: one per processor. The pictures are the same whatever the number.
  std::size_t threads = 0;
};

inline constexpr std::size_t kPathfinderSide = 32;

struct PathfinderPicture {
  std::array<std::uint8_t, kPathfinderSide * kPathfinderSide> pixels{};
  bool connected = false;                           ///< the label
  std::array<std::vector<PixelPlace>, 2> contours;  ///< the free end of every paddle, in order; the first, both ends
  std::vector<std::vector<PixelPlace>> distractors;
  std::array<PixelPlace, 2> discs;
};

/// Picture `number` of a set, a function of (seed, contour_length, number) alone. Throws std::invalid_argument for a
/// contour_length that is not 3 to 14.
PathfinderPicture draw_pathfinder(const PathfinderOptions& options, std::uint64_t number);

/// How many pictures are written, of how many.
using PathfinderProgress = std::function<void(std::size_t done, std::size_t total)>;

/// Writes the pictures into one file of `count` records: a byte for the label, 1,024 for the pixels. It appears whole
/// or not at all. Throws std::invalid_argument for options out of range; bytes::FileError.
void write_pathfinder_records(const std::filesystem::path& file, const PathfinderOptions& options = {},
                              const PathfinderProgress& progress = {});

/// Writes them into an existing folder as Long-Range Arena released them: imgs/N/sample_K.png, 1,000 in each, and
/// metadata/N.npy, which are lines of text.
void write_pathfinder_folder(const std::filesystem::path& folder, const PathfinderOptions& options = {},
                             const PathfinderProgress& progress = {});

/// Writes the first rows × columns pictures into one PNG file, enlarged; those of label 1 have a bright frame, those of
/// label 0 a dark one.
void write_pathfinder_sheet(const std::filesystem::path& file, const PathfinderOptions& options, std::size_t rows = 8,
                            std::size_t columns = 12);

}  // namespace dba::data

#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dba/data/pathfinder.h"

/// How Pathfinder's pictures are drawn: at twice the size, then reduced.
namespace dba::data {

inline constexpr int kPaddleLength = 2;
inline constexpr int kPaddleMargin = 1;
/// A paddle and its surroundings fit into a square of this side; the paddle begins in its middle.
inline constexpr int kPatchReach = kPaddleLength + 1 + kPaddleMargin;
inline constexpr int kPatchSide = 2 * kPatchReach + 1;

/// A paddle of one direction.
struct PaddlePatch {
  std::array<float, kPatchSide * kPatchSide> line{};  ///< brightness, 0 to 1
  std::array<float, kPatchSide * kPatchSide> mask{};  ///< how far a place is taken, the margin included
  /// Places, from the middle, that must be free for a contour to begin with this paddle.
  std::vector<PixelPlace> taken;
};

/// The patch of a paddle in that direction, in radians, rows growing downwards.
const PaddlePatch& paddle_patch(double orientation);

/// `distance` from a place, rounded up to whole pixels.
PixelPlace step_from(PixelPlace place, double orientation, int distance);

using Canvas = std::array<float, kPathfinderSide * kPathfinderSide>;

/// Adds a disc of radius 1.5 and brightness 1 to a picture, as the maximum of both.
void draw_disc(Canvas& canvas, PixelPlace middle);

}  // namespace dba::data

#include "pathfinder_drawing.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <numbers>
#include <span>
#include <utility>

namespace dba::data {
namespace {

constexpr int kScale = 2;  // the drawing is so many times larger than the picture
constexpr int kBlownReach = kPatchReach * kScale;
constexpr int kBlownSide = 2 * kBlownReach + 1;
constexpr int kDiscReach = 3;  // radius 1.5, blown up

// A value that is an integer but for rounding counts as it: the same pictures everywhere.
int rounded_up(double value) {
  return static_cast<int>(std::ceil(value - 1e-9));
}

double lanczos(double x) {
  if (x == 0)
    return 1;
  if (std::abs(x) >= 3)
    return 0;
  const double t = std::numbers::pi * x;
  return 3 * std::sin(t) * std::sin(t / 3) / (t * t);
}

// What a pixel of the reduced line takes from the line: weights from `first` on.
struct Share {
  int first;
  std::vector<double> weights;
};

std::vector<Share> shares(int from_count, int to_count) {
  const double scale = static_cast<double>(from_count) / to_count;
  const double support = 3 * scale;
  std::vector<Share> all;
  for (int i = 0; i < to_count; ++i) {
    const double centre = (i + 0.5) * scale;
    Share share{std::max(0, static_cast<int>(centre - support + 0.5)), {}};
    const int last = std::min(from_count, static_cast<int>(centre + support + 0.5));
    double sum = 0;
    for (int k = share.first; k < last; ++k) {
      share.weights.push_back(lanczos((k - centre + 0.5) / scale));
      sum += share.weights.back();
    }
    for (double& weight : share.weights)
      weight /= sum;
    all.push_back(std::move(share));
  }
  return all;
}

// Strides in elements.
void reduce_line(const std::uint8_t* from, int from_stride, std::uint8_t* to, int to_stride,
                 const std::vector<Share>& shares) {
  for (const Share& share : shares) {
    double sum = 0;
    for (std::size_t k = 0; k < share.weights.size(); ++k)
      sum += share.weights[k] * from[(share.first + static_cast<int>(k)) * from_stride];
    *to = static_cast<std::uint8_t>(std::clamp(std::floor(sum + 0.5 - 1e-9), 0.0, 255.0));
    to += to_stride;
  }
}

// A square of bytes, reduced along the rows and then along the columns, each to bytes again.
std::vector<std::uint8_t> reduce(std::span<const std::uint8_t> picture, int side, int reduced_side) {
  const std::vector<Share> taken = shares(side, reduced_side);
  std::vector<std::uint8_t> narrow(static_cast<std::size_t>(side * reduced_side));
  for (int row = 0; row < side; ++row)
    reduce_line(picture.data() + row * side, 1, narrow.data() + row * reduced_side, 1, taken);
  std::vector<std::uint8_t> result(static_cast<std::size_t>(reduced_side * reduced_side));
  for (int column = 0; column < reduced_side; ++column)
    reduce_line(narrow.data() + column, reduced_side, result.data() + column, reduced_side, taken);
  return result;
}

using BlownPatch = std::vector<std::uint8_t>;

std::uint8_t& at(BlownPatch& patch, int row, int column) {
  return patch[static_cast<std::size_t>(row * kBlownSide + column)];
}

// One pixel wide, from the middle of the square to `end` pixels further (Bresenham).
BlownPatch blown_line(PixelPlace end) {
  BlownPatch patch(kBlownSide * kBlownSide);
  const int down = std::abs(end.row);
  const int across = std::abs(end.column);
  const bool steep = down > across;
  const int steps = std::max(down, across);
  const int rise = std::min(down, across);
  int error = 2 * rise - steps;
  PixelPlace place{kBlownReach, kBlownReach};
  for (int i = 0; i <= steps; ++i) {
    at(patch, place.row, place.column) = 255;
    const bool both = error >= 0 && rise > 0;
    if (both)
      error -= 2 * steps;
    error += 2 * rise;
    if (steep || both)
      place.row += end.row > 0 ? 1 : -1;
    if (!steep || both)
      place.column += end.column > 0 ? 1 : -1;
  }
  return patch;
}

BlownPatch widened(BlownPatch patch, int radius) {
  BlownPatch wide(patch.size());
  for (int row = 0; row < kBlownSide; ++row) {
    for (int column = 0; column < kBlownSide; ++column) {
      if (at(patch, row, column) == 0)
        continue;
      for (int y = -radius; y <= radius; ++y) {
        for (int x = -radius; x <= radius; ++x) {
          const int to_row = row + y;
          const int to_column = column + x;
          const bool inside = to_row >= 0 && to_row < kBlownSide && to_column >= 0 && to_column < kBlownSide;
          if (inside && y * y + x * x <= radius * radius)
            at(wide, to_row, to_column) = 255;
        }
      }
    }
  }
  return wide;
}

PaddlePatch make_patch(PixelPlace end) {
  const BlownPatch line = blown_line(end);
  const std::vector<std::uint8_t> line_bytes = reduce(line, kBlownSide, kPatchSide);
  const std::vector<std::uint8_t> mask_bytes = reduce(widened(line, kScale * kPaddleMargin), kBlownSide, kPatchSide);
  PaddlePatch patch;
  for (int i = 0; i < kPatchSide * kPatchSide; ++i) {
    const auto k = static_cast<std::size_t>(i);
    patch.line[k] = static_cast<float>(line_bytes[k]) / 255.0f;
    patch.mask[k] = static_cast<float>(mask_bytes[k]) / 255.0f;
    // The place where a contour begins stays a pixel clear of it, to above and to the left.
    const PixelPlace offset{i / kPatchSide - kPatchReach + 1, i % kPatchSide - kPatchReach + 1};
    const int reach = kPaddleLength + kPaddleMargin;
    if (mask_bytes[k] == 255 && std::abs(offset.row) <= reach && std::abs(offset.column) <= reach)
      patch.taken.push_back(offset);
  }
  return patch;
}

struct DiscPixel {
  std::size_t place;
  float brightness;
};

constexpr int kCanvasSide = static_cast<int>(kPathfinderSide);

std::vector<DiscPixel> make_disc(PixelPlace middle) {
  constexpr int kBlown = kScale * kCanvasSide;
  std::vector<std::uint8_t> blown(kBlown * kBlown);
  for (int y = -kDiscReach; y <= kDiscReach; ++y) {
    for (int x = -kDiscReach; x <= kDiscReach; ++x) {
      const int row = kScale * middle.row + y;
      const int column = kScale * middle.column + x;
      if (y * y + x * x <= kDiscReach * kDiscReach && row >= 0 && row < kBlown && column >= 0 && column < kBlown)
        blown[static_cast<std::size_t>(row * kBlown + column)] = 255;
    }
  }
  const std::vector<std::uint8_t> reduced = reduce(blown, kBlown, kCanvasSide);
  std::vector<DiscPixel> pixels;
  for (std::size_t i = 0; i < reduced.size(); ++i) {
    if (reduced[i] > 0)
      pixels.push_back({i, static_cast<float>(reduced[i]) / 255.0f});
  }
  return pixels;
}

}  // namespace

PixelPlace step_from(PixelPlace place, double orientation, int distance) {
  return {rounded_up(place.row + distance * std::sin(orientation)),
          rounded_up(place.column + distance * std::cos(orientation))};
}

const PaddlePatch& paddle_patch(double orientation) {
  constexpr int kReach = kScale * kPaddleLength;
  constexpr int kSide = 2 * kReach + 1;
  static const std::vector<PaddlePatch> patches = [] {
    std::vector<PaddlePatch> all;
    for (int row = -kReach; row <= kReach; ++row) {
      for (int column = -kReach; column <= kReach; ++column)
        all.push_back(make_patch({row, column}));
    }
    return all;
  }();
  const PixelPlace end = step_from({0, 0}, orientation, kReach);
  return patches[static_cast<std::size_t>((end.row + kReach) * kSide + end.column + kReach)];
}

void draw_disc(Canvas& canvas, PixelPlace middle) {
  static const std::vector<std::vector<DiscPixel>> discs = [] {
    std::vector<std::vector<DiscPixel>> all;
    for (int place = 0; place < kCanvasSide * kCanvasSide; ++place)
      all.push_back(make_disc({place / kCanvasSide, place % kCanvasSide}));
    return all;
  }();
  for (const DiscPixel& pixel : discs[static_cast<std::size_t>(middle.row * kCanvasSide + middle.column)])
    canvas[pixel.place] = std::max(canvas[pixel.place], pixel.brightness);
}

}  // namespace dba::data

#include "pathfinder_contour.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace dba::data {
namespace {

constexpr int kSide = static_cast<int>(kPathfinderSide);
constexpr double kContinuity = 1.0;
constexpr float kCrossing = 1.8f;  // so much of a place is taken where two paddles meet
constexpr double kDeadEnd = 1e-4;
constexpr std::array<PixelPlace, 4> kCorners = {{{0, 0}, {0, kSide - 1}, {kSide - 1, 0}, {kSide - 1, kSide - 1}}};

bool inside(PixelPlace place) {
  return place.row >= 0 && place.row < kSide && place.column >= 0 && place.column < kSide;
}

float& at(Canvas& canvas, PixelPlace place) {
  return canvas[static_cast<std::size_t>(place.row * kSide + place.column)];
}

// Every place of a patch that lies in the picture, with its value.
template <class Visit>
void visit(PixelPlace start, const std::array<float, kPatchSide * kPatchSide>& values, Visit visit_one) {
  for (int row = 0; row < kPatchSide; ++row) {
    for (int column = 0; column < kPatchSide; ++column) {
      const PixelPlace place{start.row + row - kPatchReach, start.column + column - kPatchReach};
      if (inside(place))
        visit_one(place, values[static_cast<std::size_t>(row * kPatchSide + column)]);
    }
  }
}

void merge(Canvas& canvas, PixelPlace start, const std::array<float, kPatchSide * kPatchSide>& values, float scale) {
  visit(start, values,
        [&](PixelPlace place, float value) { at(canvas, place) = std::max(at(canvas, place), scale * value); });
}

// Where a paddle may end, seen from its pivot: pixels of a circle.
struct Offset {
  PixelPlace end;
  double direction;
};

std::vector<Offset> circle() {
  constexpr int kRadius = kPaddleLength + kPaddleMargin;
  constexpr double kPixelArc = 1.0 / kRadius;  // in radians, one pixel long
  std::vector<Offset> offsets;
  for (int i = 0; i * kPixelArc < 2 * std::numbers::pi; ++i) {
    const PixelPlace end{static_cast<int>(std::floor(kRadius * std::sin(i * kPixelArc) + 1e-9)),
                         static_cast<int>(std::floor(kRadius * std::cos(i * kPixelArc) + 1e-9))};
    if (std::ranges::none_of(offsets, [&](const Offset& other) { return other.end == end; }))
      offsets.push_back({end, std::atan2(end.row, end.column)});
  }
  return offsets;
}

}  // namespace

void Sheet::clear(int border) {
  canvas.fill(0);
  mask.fill(0);
  for (int i = 0; i < kSide; ++i) {
    for (int depth = 0; depth < border; ++depth) {
      for (const PixelPlace place : {PixelPlace{depth, i}, PixelPlace{kSide - 1 - depth, i}, PixelPlace{i, depth},
                                     PixelPlace{i, kSide - 1 - depth}})
        at(mask, place) = 1;
    }
  }
}

double ContourPen::any_orientation() {
  return (static_cast<int>(random_.below(360)) - 180) * std::numbers::pi / 180;
}

std::optional<Contour> ContourPen::begin(PixelPlace tail, double orientation, float brightness) {
  const PixelPlace head = step_from(tail, orientation, kPaddleLength);
  const PixelPlace pivot = step_from(head, orientation + std::numbers::pi, kPaddleLength + kPaddleMargin);
  if (!inside(head) || !inside(pivot) || !inside(tail))
    return std::nullopt;
  merge(sheet_.canvas, tail, paddle_patch(orientation).line, brightness);
  return Contour{{tail, orientation}, pivot, orientation, {tail, head}};
}

// Places where a contour may begin in that direction: within a frame, and its first paddle on free ground. In most
// directions there are none: the published generator takes a direction for impossible where some place of the picture
// has no part of `taken` inside, and 31 of 360 are left. Most distractors fail for it.
std::vector<PixelPlace> ContourPen::free_places(double orientation, int frame) const {
  const std::vector<PixelPlace>& taken = paddle_patch(orientation).taken;
  const auto sees_nothing = [&](PixelPlace corner) {
    return std::ranges::none_of(taken, [&](PixelPlace offset) {
      return inside({corner.row + offset.row, corner.column + offset.column});
    });
  };
  if (std::ranges::any_of(kCorners, sees_nothing))
    return {};
  std::vector<PixelPlace> places;
  for (int row = 0; row < kSide; ++row) {
    for (int column = 0; column < kSide; ++column) {
      const bool free = std::ranges::all_of(taken, [&](PixelPlace offset) {
        const PixelPlace place{row + offset.row, column + offset.column};
        if (!inside(place))
          return true;
        const int to_border = std::min({place.row, place.column, kSide - 1 - place.row, kSide - 1 - place.column});
        return to_border >= frame && at(sheet_.mask, place) <= kFree;
      });
      if (free)
        places.push_back({row, column});
    }
  }
  return places;
}

std::optional<Contour> ContourPen::begin_somewhere(int frame, float brightness) {
  for (int attempt = 0; attempt < kPaddleTries; ++attempt) {
    const double orientation = any_orientation();
    const std::vector<PixelPlace> places = free_places(orientation, frame);
    if (places.empty())
      return std::nullopt;
    const PixelPlace tail = places[random_.below(static_cast<std::uint32_t>(places.size()))];
    if (auto contour = begin(tail, orientation, brightness))
      return contour;
  }
  return std::nullopt;
}

// Of the next paddle's possible ends those in the picture, with weights that favour straight on and free ground.
void ContourPen::list_candidates(PixelPlace pivot, double orientation) {
  static const std::vector<Offset> offsets = circle();
  candidates_.clear();
  for (const Offset& offset : offsets) {
    const PixelPlace end{pivot.row + offset.end.row, pivot.column + offset.end.column};
    if (!inside(end))
      continue;
    const double direction = offset.direction;
    const double difference = std::abs(direction - orientation);
    const double bend = kContinuity * std::min(difference, 2 * std::numbers::pi - difference);
    const double straightness = std::max(std::cos(std::min(bend, std::numbers::pi / 2)), 0.0);
    candidates_.push_back({end, direction, straightness * straightness * (1 - taken_around(end))});
  }
}

// The most that is taken of a place and its four neighbours.
double ContourPen::taken_around(PixelPlace place) const {
  float most = 0;
  for (const PixelPlace offset : {PixelPlace{0, 0}, {-1, 0}, {1, 0}, {0, -1}, {0, 1}}) {
    const PixelPlace near{place.row + offset.row, place.column + offset.column};
    if (inside(near))
      most = std::max(most, at(sheet_.mask, near));
  }
  return most;
}

bool ContourPen::extend(Contour& contour, float brightness) {
  const PixelPlace pivot = step_from(contour.pivot, contour.orientation, kPaddleLength + 2 * kPaddleMargin);
  list_candidates(pivot, contour.orientation);
  double total = 0;
  for (const Candidate& candidate : candidates_)
    total += candidate.weight;
  if (total < kDeadEnd)
    return false;
  for (int attempt = 0; attempt < kPaddleTries; ++attempt) {
    double left = random_.uniform() * total;
    const Candidate* chosen = nullptr;
    for (const Candidate& candidate : candidates_) {
      chosen = candidate.weight > 0 ? &candidate : chosen;
      left -= candidate.weight;
      if (left < 0 && chosen)
        break;
    }
    const double back =
        chosen->orientation < 0 ? chosen->orientation + std::numbers::pi : chosen->orientation - std::numbers::pi;
    const PaddlePatch& patch = paddle_patch(back);
    bool crosses = false;
    visit(chosen->end, patch.mask,
          [&](PixelPlace place, float value) { crosses = crosses || at(sheet_.mask, place) + value >= kCrossing; });
    if (crosses)
      continue;
    merge(sheet_.canvas, chosen->end, patch.line, brightness);
    finish(contour);
    contour.last = {chosen->end, back};
    contour.pivot = pivot;
    contour.orientation = chosen->orientation;
    contour.ends.push_back(chosen->end);
    return true;
  }
  return false;
}

void ContourPen::finish(const Contour& contour) {
  merge(sheet_.mask, contour.last.start, paddle_patch(contour.last.orientation).mask, 1);
}

}  // namespace dba::data

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <optional>
#include <stdexcept>
#include <string>

#include "dba/data/pathfinder.h"
#include "dba/data/random.h"
#include "pathfinder_drawing.h"

namespace dba::data {
namespace {

constexpr int kSide = static_cast<int>(kPathfinderSide);
constexpr int kPadding = 1;
constexpr int kSeedDistance = 7;
constexpr double kContinuity = 1.0;
constexpr float kContourBrightness = 1.5f;  // contrast 2 of a contour × contrast 0.75 of its paddles
constexpr float kDistractorBrightness = 2.0f;
constexpr int kPaddleTries = 3;
constexpr int kDistractorTries = 5;
constexpr float kFree = 0.3f;        // less of a place is taken than this
constexpr float kCrossing = 1.8f;    // so much of a place is taken where two paddles meet
constexpr float kLeastRoom = 0.01f;  // of the picture, or no distractor is tried
constexpr double kDeadEnd = 1e-4;
constexpr std::array<PixelPlace, 4> kCorners = {{{0, 0}, {0, kSide - 1}, {kSide - 1, 0}, {kSide - 1, kSide - 1}}};

bool inside(PixelPlace place) {
  return place.row >= 0 && place.row < kSide && place.column >= 0 && place.column < kSide;
}

float& at(Canvas& canvas, PixelPlace place) {
  return canvas[static_cast<std::size_t>(place.row * kSide + place.column)];
}

float at(const Canvas& canvas, PixelPlace place) {
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

struct Paddle {
  PixelPlace start;
  double orientation;
};

// The growing end of a contour. Its last paddle is not in the mask yet: the next one begins beside it.
struct Contour {
  Paddle last;
  PixelPlace pivot;    // half a gap before the last paddle
  double orientation;  // of the last paddle, outwards
  std::vector<PixelPlace> ends;
};

class Drawing {
 public:
  Drawing(CounterRandom& random, std::size_t contour_length, PathfinderPicture& picture)
      : random_(random), contour_length_(contour_length), picture_(picture) {}

  /// False where it came to a dead end.
  bool draw() {
    canvas_.fill(0);
    mask_.fill(0);
    for (int i = 0; i < kSide; ++i) {
      for (int border = 0; border < kPadding; ++border) {
        for (const PixelPlace place : {PixelPlace{border, i}, PixelPlace{kSide - 1 - border, i}, PixelPlace{i, border},
                                       PixelPlace{i, kSide - 1 - border}})
          at(mask_, place) = 1;
      }
    }
    std::array<Contour, 2> contours;
    if (!begin_contours(contours))
      return false;
    for (std::size_t paddle = 1; paddle < contour_length_; ++paddle) {
      for (Contour& contour : contours) {
        if (!extend(contour, kContourBrightness))
          return false;
      }
    }
    // As in the published generator, the first contour's last paddle stays out of the mask.
    merge(mask_, contours[1].last.start, paddle_patch(contours[1].last.orientation).mask, 1);
    draw_distractors();
    draw_discs(contours);
    picture_.contours = {std::move(contours[0].ends), std::move(contours[1].ends)};
    write_pixels();
    return true;
  }

 private:
  double any_orientation() {
    return (static_cast<int>(random_.below(360)) - 180) * std::numbers::pi / 180;
  }

  // A contour of one paddle, drawn; nothing where it would leave the picture.
  std::optional<Contour> begin(PixelPlace tail, double orientation, float brightness) {
    const PixelPlace head = step_from(tail, orientation, kPaddleLength);
    const PixelPlace pivot = step_from(head, orientation + std::numbers::pi, kPaddleLength + kPaddleMargin);
    if (!inside(head) || !inside(pivot) || !inside(tail))
      return std::nullopt;
    merge(canvas_, tail, paddle_patch(orientation).line, brightness);
    return Contour{{tail, orientation}, pivot, orientation, {tail, head}};
  }

  // Places where a contour may begin in that direction: within a frame, and its first paddle on free ground. In most
  // directions there are none: the published generator takes a direction for impossible where some place of the picture
  // has no part of `taken` inside, and 31 of 360 are left. Most distractors fail for it.
  std::vector<PixelPlace> free_places(double orientation, int frame) const {
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
          return to_border >= frame && at(mask_, place) <= kFree;
        });
        if (free)
          places.push_back({row, column});
      }
    }
    return places;
  }

  std::optional<Contour> begin_somewhere(int frame, float brightness) {
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

  bool begin_contours(std::array<Contour, 2>& contours) {
    auto first = begin_somewhere(2 * kSeedDistance, kContourBrightness);
    if (!first)
      return false;
    const PixelPlace tail = first->ends.front();
    for (int attempt = 0; attempt < kPaddleTries; ++attempt) {
      const double orientation = any_orientation();
      const double direction = static_cast<double>(random_.below(360)) * std::numbers::pi / 180;
      const auto nearest = [](double value) { return static_cast<int>(std::floor(value + 0.5 - 1e-9)); };
      const PixelPlace other{nearest(tail.row + kSeedDistance * std::sin(direction)),
                             nearest(tail.column + kSeedDistance * std::cos(direction))};
      if (auto second = begin(other, orientation, kContourBrightness)) {
        contours = {std::move(*first), std::move(*second)};
        return true;
      }
    }
    return false;
  }

  struct Candidate {
    PixelPlace end;
    double orientation;
    double weight;
  };

  // Where a paddle may end, seen from its pivot: pixels of a circle.
  struct Offset {
    PixelPlace end;
    double direction;
  };

  static std::vector<Offset> circle() {
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

  // Of the next paddle's possible ends those in the picture, with weights that favour straight on and free ground.
  void list_candidates(PixelPlace pivot, double orientation) {
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
  double taken_around(PixelPlace place) const {
    float most = 0;
    for (const PixelPlace offset : {PixelPlace{0, 0}, {-1, 0}, {1, 0}, {0, -1}, {0, 1}}) {
      const PixelPlace near{place.row + offset.row, place.column + offset.column};
      if (inside(near))
        most = std::max(most, at(mask_, near));
    }
    return most;
  }

  bool extend(Contour& contour, float brightness) {
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
            [&](PixelPlace place, float value) { crosses = crosses || at(mask_, place) + value >= kCrossing; });
      if (crosses)
        continue;
      merge(canvas_, chosen->end, patch.line, brightness);
      merge(mask_, contour.last.start, paddle_patch(contour.last.orientation).mask, 1);
      contour.last = {chosen->end, back};
      contour.pivot = pivot;
      contour.orientation = chosen->orientation;
      contour.ends.push_back(chosen->end);
      return true;
    }
    return false;
  }

  bool draw_distractor(std::size_t length) {
    const Canvas canvas_before = canvas_;
    const Canvas mask_before = mask_;
    const auto drawn = [&] {
      const auto free = std::ranges::count_if(mask_, [](float taken) { return taken <= kFree; });
      if (static_cast<float>(free) < kLeastRoom * static_cast<float>(mask_.size()))
        return false;
      auto contour = begin_somewhere(kPadding, kDistractorBrightness);
      if (!contour)
        return false;
      for (std::size_t paddle = 1; paddle < length; ++paddle) {
        if (!extend(*contour, kDistractorBrightness))
          return false;
      }
      merge(mask_, contour->last.start, paddle_patch(contour->last.orientation).mask, 1);
      picture_.distractors.push_back(std::move(contour->ends));
      return true;
    };
    if (drawn())
      return true;
    canvas_ = canvas_before;
    mask_ = mask_before;
    return false;
  }

  void draw_distractors() {
    const std::size_t length = contour_length_ / 3;
    picture_.distractors.clear();
    for (std::size_t i = 0; i < 20 / length; ++i) {
      for (int attempt = 0; attempt < kDistractorTries && !draw_distractor(length); ++attempt) {
      }
    }
  }

  void draw_discs(const std::array<Contour, 2>& contours) {
    const std::size_t one = random_.below(2);
    picture_.discs = {contours[one].ends.front(), contours[picture_.connected ? one : 1 - one].ends.back()};
    for (const PixelPlace disc : picture_.discs)
      draw_disc(canvas_, disc);
  }

  // The brightest place of a picture is white.
  void write_pixels() {
    const float brightest = *std::ranges::max_element(canvas_);
    for (std::size_t i = 0; i < canvas_.size(); ++i)
      picture_.pixels[i] = static_cast<std::uint8_t>(canvas_[i] / brightest * 255.0f + 0.5f);
  }

  CounterRandom& random_;
  std::size_t contour_length_;
  PathfinderPicture& picture_;
  Canvas canvas_{};
  Canvas mask_{};
  std::vector<Candidate> candidates_;
};

}  // namespace

PathfinderPicture draw_pathfinder(const PathfinderOptions& options, std::uint64_t number) {
  if (options.contour_length < 3 || options.contour_length > 14) {
    throw std::invalid_argument("draw_pathfinder: contour_length: expected 3 to 14, got " +
                                std::to_string(options.contour_length));
  }
  CounterRandom random(options.seed, number);
  PathfinderPicture picture;
  picture.connected = random.below(2) == 1;
  Drawing drawing(random, options.contour_length, picture);
  while (!drawing.draw()) {
  }
  return picture;
}

}  // namespace dba::data

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

#include "dba/data/pathfinder.h"
#include "pathfinder_contour.h"
#include "pathfinder_drawing.h"

namespace dba::data {
namespace {

constexpr int kPadding = 1;
constexpr int kSeedDistance = 7;
constexpr float kContourBrightness = 1.5f;  // contrast 2 of a contour × contrast 0.75 of its paddles
constexpr float kDistractorBrightness = 2.0f;
constexpr int kDistractorTries = 5;
constexpr float kLeastRoom = 0.01f;  // of the picture, or no distractor is tried

class Drawing {
 public:
  Drawing(CounterRandom& random, std::size_t contour_length, PathfinderPicture& picture)
      : random_(random), contour_length_(contour_length), picture_(picture) {}

  /// False where it came to a dead end.
  bool draw() {
    sheet_.clear(kPadding);
    std::array<Contour, 2> contours;
    if (!begin_contours(contours))
      return false;
    for (std::size_t paddle = 1; paddle < contour_length_; ++paddle) {
      for (Contour& contour : contours) {
        if (!pen_.extend(contour, kContourBrightness))
          return false;
      }
    }
    // As in the published generator, the first contour's last paddle stays out of the mask.
    pen_.finish(contours[1]);
    draw_distractors();
    draw_discs(contours);
    picture_.contours = {std::move(contours[0].ends), std::move(contours[1].ends)};
    write_pixels();
    return true;
  }

 private:
  bool begin_contours(std::array<Contour, 2>& contours) {
    auto first = pen_.begin_somewhere(2 * kSeedDistance, kContourBrightness);
    if (!first)
      return false;
    const PixelPlace tail = first->ends.front();
    for (int attempt = 0; attempt < kPaddleTries; ++attempt) {
      const double orientation = pen_.any_orientation();
      const double direction = static_cast<double>(random_.below(360)) * std::numbers::pi / 180;
      const auto nearest = [](double value) { return static_cast<int>(std::floor(value + 0.5 - 1e-9)); };
      const PixelPlace other{nearest(tail.row + kSeedDistance * std::sin(direction)),
                             nearest(tail.column + kSeedDistance * std::cos(direction))};
      if (auto second = pen_.begin(other, orientation, kContourBrightness)) {
        contours = {std::move(*first), std::move(*second)};
        return true;
      }
    }
    return false;
  }

  bool draw_distractor(std::size_t length) {
    const Sheet before = sheet_;
    const auto drawn = [&] {
      const auto free = std::ranges::count_if(sheet_.mask, [](float taken) { return taken <= kFree; });
      if (static_cast<float>(free) < kLeastRoom * static_cast<float>(sheet_.mask.size()))
        return false;
      auto contour = pen_.begin_somewhere(kPadding, kDistractorBrightness);
      if (!contour)
        return false;
      for (std::size_t paddle = 1; paddle < length; ++paddle) {
        if (!pen_.extend(*contour, kDistractorBrightness))
          return false;
      }
      pen_.finish(*contour);
      picture_.distractors.push_back(std::move(contour->ends));
      return true;
    };
    if (drawn())
      return true;
    sheet_ = before;
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
      draw_disc(sheet_.canvas, disc);
  }

  // The brightest place of a picture is white.
  void write_pixels() {
    const Canvas& canvas = sheet_.canvas;
    const float brightest = *std::ranges::max_element(canvas);
    for (std::size_t i = 0; i < canvas.size(); ++i)
      picture_.pixels[i] = static_cast<std::uint8_t>(canvas[i] / brightest * 255.0f + 0.5f);
  }

  CounterRandom& random_;
  std::size_t contour_length_;
  PathfinderPicture& picture_;
  Sheet sheet_;
  ContourPen pen_{random_, sheet_};
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

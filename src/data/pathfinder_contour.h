#pragma once

#include <optional>
#include <vector>

#include "dba/data/pathfinder.h"
#include "dba/data/random.h"
#include "pathfinder_drawing.h"

/// The contours of a Pathfinder picture: paddles, one behind the other, each on free ground.
namespace dba::data {

inline constexpr int kPaddleTries = 3;
inline constexpr float kFree = 0.3f;  ///< less of a place is taken than this

/// What is drawn, and how far each place is taken by it.
struct Sheet {
  Canvas canvas{};
  Canvas mask{};

  /// Empty, but for a border of that width, which is taken.
  void clear(int border);
};

struct Paddle {
  PixelPlace start;
  double orientation;
};

/// The growing end of a contour. Its last paddle is not in the mask yet: the next one begins beside it.
struct Contour {
  Paddle last;
  PixelPlace pivot;    ///< half a gap before the last paddle
  double orientation;  ///< of the last paddle, outwards
  std::vector<PixelPlace> ends;
};

/// Draws contours as the published generator does.
class ContourPen {
 public:
  /// Both must outlive it.
  ContourPen(CounterRandom& random, Sheet& sheet) : random_(random), sheet_(sheet) {}

  double any_orientation();
  /// A contour of one paddle, drawn; nothing where it would leave the picture.
  std::optional<Contour> begin(PixelPlace tail, double orientation, float brightness);
  /// The same in any direction, on free ground at least `frame` from the border.
  std::optional<Contour> begin_somewhere(int frame, float brightness);
  /// One paddle more; false at a dead end.
  bool extend(Contour& contour, float brightness);
  /// The last paddle takes its place in the mask.
  void finish(const Contour& contour);

 private:
  struct Candidate {
    PixelPlace end;
    double orientation;
    double weight;
  };

  std::vector<PixelPlace> free_places(double orientation, int frame) const;
  void list_candidates(PixelPlace pivot, double orientation);
  double taken_around(PixelPlace place) const;

  CounterRandom& random_;
  Sheet& sheet_;
  std::vector<Candidate> candidates_;
};

}  // namespace dba::data

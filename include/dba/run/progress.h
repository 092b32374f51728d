#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>

namespace dba::run {

/// How far a run has come, for the person in front of it: a bar that redraws itself on a terminal, a line now and then
/// elsewhere. It never throws and never stops a run: what cannot be written is not written.
class Progress {
 public:
  struct Options {
    /// Says nothing; messages included.
    bool quiet = false;
    /// Where it is drawn: standard error.
    int descriptor = 2;
    /// By default, whether the descriptor is a terminal.
    std::optional<bool> terminal = std::nullopt;
    /// Not on a terminal: seconds between lines, at least.
    double seconds_between_lines = 10.0;
    /// Seconds, from any origin; by default a clock that never goes back.
    std::function<double()> clock = {};
  };

  /// From update `first` (that of the checkpoint, after a resume) to `total`; total 0: nobody knows.
  Progress(std::int64_t first, std::int64_t total) : Progress(first, total, Options()) {}
  Progress(std::int64_t first, std::int64_t total, Options options);
  /// Leaves the last state of the bar standing, and the cursor on a line of its own.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// After every update; draws at most ten times a second. Figures that are not known are NaN; accuracy is a fraction.
  void update(std::int64_t done, double loss = kUnknown, double accuracy = kUnknown);
  /// A line that stays, above the bar.
  void message(const std::string& text);
  /// Draws the last state. Later calls do nothing but print messages.
  void finish();

  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

 private:
  std::string figures(double now) const;
  std::string bar(double now) const;
  void draw(double now);
  void measure(double now);
  void put(const std::string& text) const;

  Options options_;
  bool terminal_ = false;
  std::int64_t first_;
  std::int64_t done_;
  std::int64_t total_;
  double loss_ = kUnknown;
  double accuracy_ = kUnknown;
  double start_;
  double last_drawn_ = -std::numeric_limits<double>::infinity();
  // Updates per second: a mean that forgets, so that it follows evaluations and changes of length.
  double rate_ = 0.0;
  double measured_at_;
  std::int64_t measured_done_;
  bool bar_stands_ = false;
  bool finished_ = false;
};

}  // namespace dba::run

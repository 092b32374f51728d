#include "dba/run/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

namespace dba::run {
namespace {

constexpr double kSecondsBetweenDrawings = 0.1;
constexpr double kSecondsOfMemory = 15.0;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::size_t width_of(int descriptor) {
  winsize size{};
  constexpr std::size_t kUsual = 80;
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

template <typename... Args>
std::string formatted(const char* format, Args... args) {
  char text[128];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

// "4 s", "3 min 20 s", "2 h 05 min", "3 d 4 h"
std::string duration(double seconds) {
  if (!(seconds < 1e9))
    return "long";
  const auto s = static_cast<long long>(std::llround(seconds));
  if (s < 60)
    return formatted("%lld s", s);
  if (s < 3600)
    return formatted("%lld min %02lld s", s / 60, s % 60);
  if (s < 86'400)
    return formatted("%lld h %02lld min", s / 3600, s / 60 % 60);
  return formatted("%lld d %lld h", s / 86'400, s / 3600 % 24);
}

}  // namespace

Progress::Progress(std::int64_t first, std::int64_t total, Options options)
    : options_(std::move(options)), first_(first), done_(first), total_(total), measured_done_(first) {
  if (!options_.clock)
    options_.clock = steady_seconds;
  terminal_ = options_.terminal.value_or(::isatty(options_.descriptor) == 1);
  start_ = measured_at_ = options_.clock();
}

Progress::~Progress() {
  finish();
}

void Progress::put(const std::string& text) const {
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(options_.descriptor, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR)
      continue;
    if (count <= 0)
      return;
    written += static_cast<std::size_t>(count);
  }
}

void Progress::measure(double now) {
  const double seconds = now - measured_at_;
  if (seconds <= 0 || done_ == measured_done_)
    return;
  const double newest = static_cast<double>(done_ - measured_done_) / seconds;
  // Until the memory is full, every second so far weighs about the same.
  const double weight = 1 - std::exp(-seconds / std::min(kSecondsOfMemory, std::max(now - start_, seconds)));
  rate_ = rate_ > 0 ? rate_ + weight * (newest - rate_) : newest;
  measured_at_ = now;
  measured_done_ = done_;
}

std::string Progress::figures(double now) const {
  std::string text = formatted("%lld", static_cast<long long>(done_));
  if (total_ > 0) {
    text += formatted("/%lld (%.0f%%)", static_cast<long long>(total_),
                      std::floor(100.0 * static_cast<double>(done_) / static_cast<double>(total_)));
  }
  if (rate_ > 0)
    text += formatted(rate_ < 10 ? "  %.2f/s" : "  %.0f/s", rate_);
  if (!std::isnan(loss_))
    text += formatted("  loss %.4f", loss_);
  if (!std::isnan(accuracy_))
    text += formatted("  accuracy %.1f%%", 100.0 * accuracy_);
  if (finished_ || (total_ > 0 && done_ >= total_))
    text += "  " + duration(now - start_) + " in all";
  else if (total_ > 0 && rate_ > 0)
    text += "  " + duration(static_cast<double>(total_ - done_) / rate_) + " left";
  return text;
}

std::string Progress::bar(double now) const {
  std::string text = figures(now);
  // One column stays free: terminals differ in what they do at the last one.
  const std::size_t columns = width_of(options_.descriptor) - 1;
  constexpr std::size_t kNarrowest = 10;
  constexpr std::size_t kWidest = 40;
  if (total_ > 0 && text.size() + kNarrowest + 3 <= columns) {
    const std::size_t width = std::min(kWidest, columns - text.size() - 3);
    const double part = std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
    const auto filled = static_cast<std::size_t>(part * static_cast<double>(width));
    text = "[" + std::string(filled, '=') + std::string(width - filled, ' ') + "] " + text;
  }
  return text.substr(0, columns);
}

void Progress::draw(double now) {
  // Back to the start of the line, the line, and what is left of the one before erased.
  if (terminal_)
    put("\r" + bar(now) + "\x1b[K");
  else
    put(figures(now) + "\n");
  bar_stands_ = terminal_;
  last_drawn_ = now;
}

void Progress::update(std::int64_t done, double loss, double accuracy) {
  if (options_.quiet || finished_)
    return;
  done_ = done;
  if (!std::isnan(loss))
    loss_ = loss;
  if (!std::isnan(accuracy))
    accuracy_ = accuracy;
  const double now = options_.clock();
  if (now - last_drawn_ < (terminal_ ? kSecondsBetweenDrawings : options_.seconds_between_lines))
    return;
  // The line of the last update is that of finish().
  if (!terminal_ && total_ > 0 && done_ >= total_)
    return;
  measure(now);
  draw(now);
}

void Progress::message(const std::string& text) {
  if (options_.quiet)
    return;
  put((bar_stands_ ? "\r\x1b[K" : "") + text + "\n");
  if (std::exchange(bar_stands_, false) && !finished_)
    draw(options_.clock());
}

void Progress::finish() {
  if (options_.quiet || finished_)
    return;
  finished_ = true;
  if (done_ == first_ && !bar_stands_)
    return;
  const double now = options_.clock();
  measure(now);
  draw(now);
  if (terminal_)
    put("\n");
  bar_stands_ = false;
}

}  // namespace dba::run

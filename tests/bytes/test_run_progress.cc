#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "dba/run/progress.h"

namespace dba::run {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Takes what is written into `descriptor()`, which is a pipe.
class Listener {
 public:
  Listener() {
    if (::pipe2(ends_, O_NONBLOCK) != 0)
      throw std::runtime_error("no pipe");
  }
  ~Listener() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int descriptor() const {
    return ends_[1];
  }
  std::string heard() const {
    std::string text;
    char buffer[4096];
    for (ssize_t size = 0; (size = ::read(ends_[0], buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(size));
    return text;
  }

 private:
  int ends_[2];
};

// The screen of a terminal of that many columns.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) {
    outer_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (outer_ < 0 || ::grantpt(outer_) != 0 || ::unlockpt(outer_) != 0)
      return;
    char name[64];
    if (::ptsname_r(outer_, name, sizeof name) == 0)
      inner_ = ::open(name, O_RDWR | O_NOCTTY);
    resize(columns);
  }
  ~Terminal() {
    ::close(inner_);
    ::close(outer_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  bool works() const {
    return inner_ >= 0 && ::isatty(inner_) == 1;
  }
  void resize(unsigned short columns) const {
    const winsize size{24, columns, 0, 0};
    ::ioctl(outer_, TIOCSWINSZ, &size);
  }
  int descriptor() const {
    return inner_;
  }
  std::string heard() const {
    std::string text;
    char buffer[4096];
    for (ssize_t size = 0; (size = ::read(outer_, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(size));
    return text;
  }

 private:
  int outer_ = -1;
  int inner_ = -1;
};

struct Clock {
  double now = 1000.0;
  std::function<double()> function() {
    return [this] { return now; };
  }
};

// What stays on the screen of what was drawn: \r goes back, \x1b[K erases to the end of the line.
std::vector<std::string> on_screen(const std::string& drawn) {
  std::vector<std::string> lines(1);
  std::size_t column = 0;
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    if (drawn[i] == '\r') {
      column = 0;
    } else if (drawn[i] == '\n') {
      lines.emplace_back();
      column = 0;
    } else if (drawn.compare(i, 3, "\x1b[K") == 0) {
      lines.back().resize(column);
      i += 2;
    } else {
      lines.back().resize(std::max(lines.back().size(), column + 1), ' ');
      lines.back()[column++] = drawn[i];
    }
  }
  return lines;
}

TEST(Progress, WithoutATerminalItWritesPlainLinesNowAndThen) {
  Clock clock;
  const Listener listener;
  Progress progress(0, 1000, {.descriptor = listener.descriptor(), .clock = clock.function()});
  for (int update = 1; update <= 1000; ++update) {
    clock.now += 0.125;
    progress.update(update, 2.0 - 0.001 * update, update >= 500 ? 0.625 : Progress::kUnknown);
  }
  progress.finish();
  const std::string text = listener.heard();
  EXPECT_EQ(text.find_first_of("\r\x1b"), std::string::npos);
  const auto lines = on_screen(text);
  // 125 seconds: one line at once, one every 10 seconds and one at the end, and nothing on the line after it.
  ASSERT_EQ(lines.size(), 1u + 12u + 1u + 1u);
  EXPECT_THAT(lines[0], StartsWith("1/1000 (0%)"));
  EXPECT_THAT(lines[3], AllOf(StartsWith("241/1000 (24%)"), HasSubstr("  8.00/s"), HasSubstr("  loss 1.7590"),
                              Not(HasSubstr("accuracy")), EndsWith("  1 min 35 s left")));
  EXPECT_THAT(lines[lines.size() - 2], AllOf(StartsWith("1000/1000 (100%)"), HasSubstr("  loss 1.0000"),
                                             HasSubstr("  accuracy 62.5%"), EndsWith("  2 min 05 s in all")));
  EXPECT_EQ(lines.back(), "");
}

TEST(Progress, WithoutATerminalTheLastLineComesOnce) {
  for (const double seconds : {0.0, 100.0}) {  // between the updates: a line is due at the first, or at both
    Clock clock;
    const Listener listener;
    {
      Progress progress(0, 2, {.descriptor = listener.descriptor(), .clock = clock.function()});
      clock.now += seconds;
      progress.update(1);
      clock.now += seconds;
      progress.update(2);
      clock.now += 5;
    }
    EXPECT_THAT(on_screen(listener.heard()),
                ElementsAre(StartsWith("1/2 (50%)"), AllOf(StartsWith("2/2 (100%)"), EndsWith(" in all")), ""));
  }
}

TEST(Progress, OnATerminalItRedrawsOneLineAtMostTenTimesASecond) {
  Clock clock;
  const Listener listener;
  Progress progress(0, 10'000, {.descriptor = listener.descriptor(), .terminal = true, .clock = clock.function()});
  for (int update = 1; update <= 1000; ++update) {
    clock.now += 0.001;
    progress.update(update, 1.5);
  }
  const std::string text = listener.heard();
  const auto drawings = std::ranges::count(text, '\r');
  EXPECT_GE(drawings, 9);
  EXPECT_LE(drawings, 11);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  progress.finish();
  const auto screen = on_screen(text + listener.heard());
  ASSERT_EQ(screen.size(), 2u);
  EXPECT_THAT(screen[0], AllOf(StartsWith("[==  "), HasSubstr("] 1000/10000 (10%)"), HasSubstr("loss 1.5000")));
  EXPECT_EQ(screen[1], "");
}

TEST(Progress, MessagesStandAboveTheBar) {
  Clock clock;
  const Listener listener;
  std::string text;
  {
    Progress progress(0, 100, {.descriptor = listener.descriptor(), .terminal = true, .clock = clock.function()});
    progress.message("first");
    clock.now += 1;
    progress.update(50);
    progress.message("second");
    progress.message("third");
    text = listener.heard();
    EXPECT_THAT(on_screen(text), ElementsAre("first", "second", "third", AllOf(StartsWith("["), HasSubstr("50/100"))));
  }
  text += listener.heard();
  EXPECT_THAT(on_screen(text), ElementsAre("first", "second", "third", HasSubstr("50/100"), ""));
}

TEST(Progress, ItFitsTheTerminalWhateverItsWidth) {
  const Terminal terminal(80);
  if (!terminal.works())
    GTEST_SKIP() << "no pseudo-terminal to be had";
  Clock clock;
  Progress progress(0, 1'000, {.descriptor = terminal.descriptor(), .clock = clock.function()});
  for (const unsigned short columns : {200, 80, 60, 20, 5, 1}) {
    terminal.resize(columns);
    clock.now += 1;
    progress.update(500, 0.25, 0.5);
    const auto screen = on_screen(terminal.heard());
    ASSERT_EQ(screen.size(), 1u) << columns;
    EXPECT_LT(screen[0].size(), columns);
    if (columns >= 80) {
      EXPECT_THAT(screen[0], AllOf(StartsWith("[===="), HasSubstr("accuracy 50.0%")));
    }
    if (columns == 60) {
      EXPECT_THAT(screen[0], StartsWith("500/1000 (50%)"));
    }
  }
}

TEST(Progress, QuietIsSilent) {
  const Listener listener;
  Progress progress(0, 10, {.quiet = true, .descriptor = listener.descriptor()});
  progress.update(5, 1.0);
  progress.message("text");
  progress.finish();
  EXPECT_EQ(listener.heard(), "");
}

TEST(Progress, NothingDoneIsNothingSaid) {
  const Listener listener;
  { const Progress progress(10, 10, {.descriptor = listener.descriptor()}); }
  EXPECT_EQ(listener.heard(), "");
}

TEST(Progress, AfterAResumeTheRateCountsFromThere) {
  Clock clock;
  const Listener listener;
  Progress progress(1'000'000, 1'000'100, {.descriptor = listener.descriptor(), .clock = clock.function()});
  clock.now += 10;
  progress.update(1'000'050);
  EXPECT_THAT(listener.heard(), AllOf(HasSubstr("5.00/s"), HasSubstr("10 s left")));
}

TEST(Progress, WithoutATotalThereIsNoTimeLeft) {
  Clock clock;
  const Listener listener;
  Progress progress(0, 0, {.descriptor = listener.descriptor(), .clock = clock.function()});
  clock.now += 10;
  progress.update(50);
  EXPECT_EQ(listener.heard(), "50  5.00/s\n");
}

TEST(Progress, AClosedDescriptorIsNoObstacle) {
  Progress progress(0, 10, {.descriptor = -1, .terminal = true});
  progress.update(5, 1.0);
  progress.message("text");
  progress.finish();
}

}  // namespace
}  // namespace dba::run

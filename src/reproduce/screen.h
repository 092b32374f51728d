#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace dba::reproduce {

/// Lines that stay, and on a terminal one below them that is redrawn.
class Screen {
 public:
  explicit Screen(bool quiet) : quiet_(quiet), terminal_(!quiet && ::isatty(STDERR_FILENO) == 1) {}
  ~Screen() {
    clear();
  }
  void line(const std::string& text) {
    if (quiet_)
      return;
    clear();
    std::fprintf(stderr, "%s\n", text.c_str());
  }
  void status(std::string text) {
    if (!terminal_)
      return;
    winsize size{};
    const std::size_t width = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
    text.resize(std::min(text.size(), width));
    std::fprintf(stderr, "\r\033[K%s", text.c_str());
    std::fflush(stderr);
    drawn_ = true;
  }

 private:
  void clear() {
    if (drawn_)
      std::fputs("\r\033[K", stderr);
    drawn_ = false;
  }

  bool quiet_;
  bool terminal_;
  bool drawn_ = false;
};

}  // namespace dba::reproduce

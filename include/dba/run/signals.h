#pragma once

#include <chrono>
#include <csignal>

namespace dba::run {

/// What a program ends with that stopped because the time given to it was over; its state is saved.
inline constexpr int kTimeIsOver = 3;

/// Signals that come so soon after the first are still the same request: `timeout` and batch systems signal a program
/// and then its process group.
inline constexpr std::chrono::milliseconds kSameRequest{250};

/// While it lives, the first SIGINT or SIGTERM only asks: the program finishes its step, saves and ends. A second
/// request ends it at once, as if nobody had caught it. One object at a time (std::logic_error otherwise).
/// A SIGINT that was ignored before, as in a shell's background job, stays ignored.
class StopSignals {
 public:
  StopSignals();
  /// Whatever handled the signals before does so again, kSameRequest after a request to stop at the earliest: until
  /// then the rest of that request may still come.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that asked to stop, or 0.
  static int received();
  /// What a program ends with that stopped because of a signal: 130 for SIGINT, 143 for SIGTERM.
  static int exit_code(int signal) {
    return 128 + signal;
  }

 private:
  struct sigaction old_int_ {};
  struct sigaction old_term_ {};
};

}  // namespace dba::run

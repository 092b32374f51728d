#include "dba/run/signals.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <stdexcept>
#include <thread>

namespace dba::run {
namespace {

static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "a signal handler may use no other");
std::atomic<int> stop_signal{0};
std::atomic<int64_t> asked_at{0};
std::atomic<bool> in_place{false};

int64_t milliseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

extern "C" void ask_to_stop(int signal) {
  const auto now = milliseconds();
  int64_t never = 0;
  if (asked_at.compare_exchange_strong(never, now)) {
    stop_signal = signal;
    return;
  }
  if (now - asked_at < kSameRequest.count())
    return;
  // The second request. The signal is blocked while its handler runs, and does its work on return.
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void install(int signal, struct sigaction& old) {
  struct sigaction action {};
  action.sa_handler = ask_to_stop;
  sigemptyset(&action.sa_mask);
  // Reads and writes that a signal interrupts go on.
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, &old);
}

}  // namespace

StopSignals::StopSignals() {
  if (in_place.exchange(true))
    throw std::logic_error("StopSignals: there is one already; a program needs only one");
  stop_signal = 0;
  asked_at = 0;
  install(SIGTERM, old_term_);
  install(SIGINT, old_int_);
  if (old_int_.sa_handler == SIG_IGN)
    ::sigaction(SIGINT, &old_int_, nullptr);
}

StopSignals::~StopSignals() {
  if (const auto asked = asked_at.load(); asked != 0) {
    const auto left = std::chrono::milliseconds(asked - milliseconds()) + kSameRequest;
    std::this_thread::sleep_for(left);  // not at all where it is over
  }
  ::sigaction(SIGINT, &old_int_, nullptr);
  ::sigaction(SIGTERM, &old_term_, nullptr);
  in_place = false;
}

int StopSignals::received() {
  return stop_signal.load();
}

}  // namespace dba::run

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <stdexcept>
#include <thread>

#include "dba/run/signals.h"

namespace dba::run {
namespace {

// Runs `body` in a child and returns how it ended.
int status_of(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0)
    ::_exit(body());
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST(StopSignals, TheFirstOnlyAsks) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const int status = status_of([signal] {
      const StopSignals signals;
      if (StopSignals::received() != 0)
        return 1;
      ::raise(signal);
      return StopSignals::exit_code(StopSignals::received());
    });
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), signal == SIGINT ? 130 : 143);
  }
}

TEST(StopSignals, TheSecondEndsTheProgram) {
  for (const int first : {SIGINT, SIGTERM}) {
    for (const int second : {SIGINT, SIGTERM}) {
      const int status = status_of([first, second] {
        const StopSignals signals;
        ::raise(first);
        std::this_thread::sleep_for(kSameRequest);
        ::raise(second);
        return 0;
      });
      EXPECT_TRUE(WIFSIGNALED(status));
      EXPECT_EQ(WTERMSIG(status), second);
    }
  }
}

TEST(StopSignals, TwoAtOnceAreOneRequest) {
  const int status = status_of([] {
    const StopSignals signals;
    ::raise(SIGTERM);
    ::raise(SIGTERM);
    ::raise(SIGINT);
    return StopSignals::received();
  });
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), SIGTERM);
}

TEST(StopSignals, TheRestOfARequestMayComeWhenItIsGone) {
  const int status = status_of([] {
    std::thread rest;
    {
      const StopSignals signals;
      ::raise(SIGTERM);
      rest = std::thread([] {
        std::this_thread::sleep_for(kSameRequest / 10);
        ::kill(::getpid(), SIGTERM);
      });
    }
    rest.join();
    return 0;
  });
  EXPECT_TRUE(WIFEXITED(status));
}

int counted = 0;
void count(int) {
  ++counted;
}

TEST(StopSignals, WhatWasThereBeforeIsThereAgain) {
  const auto old = std::signal(SIGTERM, count);
  counted = 0;
  {
    const StopSignals signals;
    ::raise(SIGTERM);
    EXPECT_EQ(counted, 0);
    EXPECT_EQ(StopSignals::received(), SIGTERM);
  }
  ::raise(SIGTERM);
  EXPECT_EQ(counted, 1);
  std::signal(SIGTERM, old);
  const StopSignals next;
  EXPECT_EQ(StopSignals::received(), 0);
  EXPECT_THROW(StopSignals(), std::logic_error);
}

TEST(StopSignals, AnIgnoredInterruptStaysIgnored) {
  const int status = status_of([] {
    std::signal(SIGINT, SIG_IGN);
    const StopSignals signals;
    ::raise(SIGINT);
    ::raise(SIGINT);
    return StopSignals::received();
  });
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace dba::run

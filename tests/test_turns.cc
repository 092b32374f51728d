#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "ops/cpu/turns.h"

namespace dba::test {
namespace {

TEST(CpuTurns, GiveEveryPieceToOneThread) {
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    for (const int64_t pieces : {0, 1, 2, 7, 64, 1000}) {
      SCOPED_TRACE(std::to_string(pieces) + " pieces, " + std::to_string(threads) + " threads");
      std::vector<std::atomic<int>> taken(static_cast<size_t>(pieces));
      ops::cpu::share_out(pieces, 1, [&](ops::cpu::Turns& turns) {
        for (int64_t i = 0, end = 0; turns.next(i, end);)
          for (; i < end; ++i)
            ++taken[static_cast<size_t>(i)];
      });
      for (const auto& count : taken)
        EXPECT_EQ(count, 1);
    }
  }
  at::set_num_threads(before);
}

TEST(CpuTurns, BecomeShorterTowardsTheEnd) {
  ops::cpu::Turns turns(64, 2);
  int64_t from = 0, to = 0, longest = 64;
  while (turns.next(from, to)) {
    EXPECT_LE(to - from, longest);
    longest = to - from;
  }
  EXPECT_EQ(to, 64);
  EXPECT_EQ(longest, 1);
}

}  // namespace
}  // namespace dba::test

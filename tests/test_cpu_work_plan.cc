#include <gtest/gtest.h>

#include "ops/cpu/work_plan.h"
#include "support/cases.h"

/// How tokens are divided among the threads of a CPU.
namespace dba::test {
namespace {

TEST(CpuWorkPlan, CoversEveryTokenOnceAndKeepsFewSums) {
  constexpr int64_t kSums = 256 * 256;
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{1 << 20}, {100000, 0, 3, 70000, 12, 1 << 18}, std::vector<int64_t>(5000, 7)}) {
    const PackedBatch batch(lengths);
    const ops::cpu::WorkPlan plan(batch.sequences.begin, batch.sequences.end, kSums);
    int64_t next = 0, parts = 0;
    for (const ops::cpu::Segment& segment : plan.segments) {
      EXPECT_EQ(segment.first_row, next);
      EXPECT_EQ(segment.first_row - segment.first_token, batch.begin[static_cast<size_t>(segment.sequence)]);
      EXPECT_EQ(segment.first_token % ops::cpu::kTile, 0);
      EXPECT_EQ(segment.part >= 0, segment.tokens < segment.length);
      parts += segment.part >= 0 ? 1 : 0;
      next += segment.tokens;
    }
    EXPECT_EQ(next, batch.rows);
    EXPECT_EQ(parts, plan.parts);
    EXPECT_EQ(plan.first_segment.back(), static_cast<int64_t>(plan.segments.size()));
    EXPECT_LE((plan.units() + plan.parts) * kSums * 4, 48 << 20) << "bytes of float32 sums";
  }
}

/// Tokens of the units that one of two threads gets if neither is held up: about the first half.
int64_t tokens_of_first_thread(const ops::cpu::WorkPlan& plan) {
  int64_t tokens = 0;
  const auto end = plan.first_segment[static_cast<size_t>((plan.units() + 1) / 2)];
  for (int64_t i = 0; i < end; ++i) {
    tokens += plan.segments[static_cast<size_t>(i)].tokens;
  }
  return tokens;
}

TEST(CpuWorkPlan, FindsTheSameWorkForTwoThreads) {
  for (const auto& [count, length] : {std::pair<size_t, int64_t>{60, 40},
                                      {12, 160},
                                      {8, 256},
                                      {3, 700},
                                      {1, 1000},
                                      {2, 1000},
                                      {1, 2200},
                                      {64, 128},
                                      {8, 1024},
                                      {2, 4096},
                                      {1, 16384}}) {
    SCOPED_TRACE(std::to_string(count) + " sequences of " + std::to_string(length));
    const PackedBatch batch(std::vector<int64_t>(count, length));
    const ops::cpu::WorkPlan plan(batch.sequences.begin, batch.sequences.end, 0);
    EXPECT_GE(plan.units(), 2);
    EXPECT_NEAR(static_cast<double>(tokens_of_first_thread(plan)) / static_cast<double>(batch.rows), 0.5, 0.06);
  }
}

}  // namespace
}  // namespace dba::test

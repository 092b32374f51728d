#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "dba/data/split.h"

namespace dba::data {
namespace {

using testing::IsEmpty;

TEST(HoldOut, IsStratifiedAndReproducible) {
  std::vector<std::int32_t> labels;
  for (int i = 0; i < 1000; ++i)
    labels.push_back(i % 10 == 0 ? 2 : i % 2);
  labels.push_back(5);  // a class of one
  labels.insert(labels.end(), 2, 7);
  const Split split = hold_out(labels, 0.1, 3);
  std::map<std::int32_t, int> held;
  for (const std::size_t i : split.held_out)
    ++held[labels[i]];
  EXPECT_EQ(held, (std::map<std::int32_t, int>{{0, 40}, {1, 50}, {2, 10}, {7, 1}}));
  EXPECT_TRUE(std::ranges::is_sorted(split.held_out));
  std::vector<std::size_t> all = split.kept;
  all.insert(all.end(), split.held_out.begin(), split.held_out.end());
  std::ranges::sort(all);
  std::vector<std::size_t> expected(labels.size());
  std::iota(expected.begin(), expected.end(), std::size_t{0});
  EXPECT_EQ(all, expected);
  EXPECT_EQ(hold_out(labels, 0.1, 3).held_out, split.held_out);
  EXPECT_NE(hold_out(labels, 0.1, 4).held_out, split.held_out);
}

TEST(HoldOut, RemaindersBringTheTotalNearTheFraction) {
  const std::vector<std::int32_t> labels = {0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2};
  // Shares 1.75, 1.75, 1.5 of 5.
  const Split split = hold_out(labels, 0.25, 0);
  EXPECT_EQ(split.held_out.size(), 5u);
  const std::vector<std::int32_t> two = {0, 0, 1, 1};
  EXPECT_EQ(hold_out(two, 0.99, 0).kept.size(), 2u);
  EXPECT_EQ(hold_out(two, 0.01, 0).held_out.size(), 2u);
  EXPECT_THAT(hold_out({}, 0.5, 0).kept, IsEmpty());
  EXPECT_THROW(hold_out(two, 0.0, 0), std::invalid_argument);
  EXPECT_THROW(hold_out(two, 1.0, 0), std::invalid_argument);
  EXPECT_THROW(hold_out(std::vector<std::int32_t>{0, -1}, 0.5, 0), std::invalid_argument);
}

}  // namespace
}  // namespace dba::data

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <tuple>
#include <vector>

#include "bench/memory.h"
#include "dba/zoo.h"
#include "ops/kept_tensors.h"
#include "support/cases.h"
#include "zoo/buckets.h"

namespace dba::test {
namespace {

constexpr int64_t kShort = 512, kLong = 1024;

enum class Layout { plain, packed };

/// The most memory that forward and backward hold on a sequence of n tokens, packed with one half as long.
double peak(const zoo::Member& member, zoo::OptionValues values, int64_t n, Layout layout) {
  if (member.capabilities.needs_max_length)
    values["max_length"] = std::to_string(kLong);
  const auto layer = zoo::make(member.name, DBAttentionOptions(16, 2).z_update(ZUpdate::own), values);
  const PackedBatch batch(layout == Layout::plain ? std::vector<int64_t>{n} : std::vector<int64_t>{n, n / 2});
  const auto sequences = layout == Layout::plain ? Sequences::dense(1, n, at::kCPU) : batch.sequences;
  const at::Tensor x = Random(1).normal({batch.rows, 16}).to(at::kFloat).requires_grad_(true);
  const auto pass = [&] { dynamic_cast<Attention&>(*layer).forward(x, sequences).y.sum().backward(); };
  pass();  // gradients and whatever a library keeps stand from now on
  ops::forget_kept_tensors();
  return static_cast<double>(bench::measure_peak(at::kCPU, pass).tensors);
}

double growth(const zoo::Member& member, const zoo::OptionValues& values = {}, Layout layout = Layout::plain) {
  return peak(member, values, kLong, layout) / peak(member, values, kShort, layout);
}

TEST(ZooGrowth, MemoryGrowsAsTheRecordSays) {
  for (const auto layout : {Layout::plain, Layout::packed}) {
    for (const auto& member : zoo::members()) {
      const auto claimed = member.capabilities.growth;
      if (claimed == zoo::Growth::quadratic)
        continue;
      const double most = claimed == zoo::Growth::sub_quadratic ? 3.0 : 2.2;
      EXPECT_LT(growth(member, {}, layout), most) << member.name << (layout == Layout::packed ? ", packed" : "");
    }
  }
}

/// Of forward and backward on one long sequence among many short ones, over that on two long ones of as many tokens.
double cost_of_raggedness(const zoo::Member& member) {
  zoo::OptionValues values;
  if (member.capabilities.needs_max_length)
    values["max_length"] = std::to_string(kLong);
  const auto layer = zoo::make(member.name, DBAttentionOptions(16, 2).z_update(ZUpdate::own), values);
  std::vector<int64_t> ragged(129, 8);
  ragged[40] = kLong;
  const auto peak_of = [&](const std::vector<int64_t>& lengths) {
    const PackedBatch batch(lengths);
    const at::Tensor x = Random(1).normal({batch.rows, 16}).to(at::kFloat).requires_grad_(true);
    const auto pass = [&] { dynamic_cast<Attention&>(*layer).forward(x, batch.sequences).y.sum().backward(); };
    pass();
    ops::forget_kept_tensors();
    return static_cast<double>(bench::measure_peak(at::kCPU, pass).tensors);
  };
  return peak_of(ragged) / peak_of({kLong, kLong});
}

TEST(ZooGrowth, AShortSequenceCostsNoMoreBesideALongOne) {
  // 64 where all are padded to the longest; DBA has slots of every sequence, more than these have tokens.
  for (const auto& member : zoo::members()) {
    EXPECT_LT(cost_of_raggedness(member), 8.0) << member.name;
  }
}

TEST(ZooGrowth, BlocksAndWindowsBeyondTheSequenceCostNothing) {
  // 512 tokens are one block of 512 or eight of 64, which a window of fifteen around any of them covers.
  const std::vector<std::tuple<const char*, const char*, const char*, const char*>> cases = {
      {"sparse", "block", "512", "4096"}, {"bigbird", "window", "15", "999"}};
  for (const auto& [name, option, enough, beyond] : cases) {
    const auto peak_of = [&, name = name, option = option](const char* value) {
      return peak(zoo::member(name), {{option, value}}, kShort, Layout::plain);
    };
    EXPECT_LE(peak_of(beyond), peak_of(enough)) << name;
  }
}

TEST(ZooGrowth, ADenseMapIsSeen) {
  EXPECT_GT(growth(zoo::member("synthesizer"), {{"kind", "dense"}}), 3.5);
  EXPECT_GT(growth(zoo::member("synthesizer"), {{"kind", "factorised_dense"}}), 3.5);
}

TEST(ZooGrowth, TheExpectationOfYosoKeepsNoMap) {
  EXPECT_LT(growth(zoo::member("yoso"), {{"kind", "expectation"}}), 2.2);
}

TEST(ZooGrowth, YosoInBucketsKeepsNoMap) {
  // Few buckets and hashes: both lengths are trained by tables.
  EXPECT_LT(growth(zoo::member("yoso"), {{"tau", "2"}, {"hashes", "3"}}), 2.2);
}

TEST(ZooGrowth, TablesThatAreLargerThanTheTokensComeByColumns) {
  Random random(2);
  const auto rows = [&] { return random.normal({1, 200, 32}); };
  const at::Tensor q = rows(), k = rows(), v = rows(), dy = rows();
  const at::Tensor codes = random.integers(4096, {1, 200, 1}).to(at::kShort);
  const auto peak_of = [&](int64_t at_once) {
    return static_cast<double>(bench::measure_peak(at::kCPU, [&] {
                                 zoo::sums_within_buckets(q, k, v, dy, codes, codes, 4096, at::kDouble, at_once);
                               }).tensors);
  };
  EXPECT_LT(peak_of(1), peak_of(int64_t{1} << 40) / 8);
}

}  // namespace
}  // namespace dba::test

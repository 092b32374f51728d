#include "ops/cpu/work_plan.h"

#include <algorithm>

namespace dba::ops::cpu {
namespace {

/// Enough tokens that starting a unit and merging its sums cost little.
constexpr int64_t kLeastTokens = 1024;
constexpr int64_t kMostUnits = 64;
constexpr int64_t kMostSums = int64_t{1} << 23;  // 32 MB of float32

std::vector<int64_t> values(const at::Tensor& bounds) {
  const auto plain = bounds.to(at::kLong).contiguous();
  const auto* const data = plain.const_data_ptr<int64_t>();
  return {data, data + plain.numel()};
}

int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

WorkPlan::WorkPlan(const at::Tensor& begin_, const at::Tensor& end_, int64_t sums_per_unit)
    : begin(values(begin_)), end(values(end_)) {
  int64_t total = 0;
  for (size_t b = 0; b < begin.size(); ++b) {
    total += end[b] - begin[b];
  }
  const auto most = std::clamp<int64_t>(kMostSums / std::max<int64_t>(sums_per_unit, 1), 4, kMostUnits);
  const auto tokens = std::max(kLeastTokens, divided_up(divided_up(total, most), kTile) * kTile);

  int64_t in_unit = 0;  // tokens of the open unit
  const auto close = [&] {
    if (in_unit > 0) {
      first_segment.push_back(static_cast<int64_t>(segments.size()));
      in_unit = 0;
    }
  };
  first_segment.push_back(0);
  for (size_t b = 0; b < begin.size(); ++b) {
    const auto sequence = static_cast<int64_t>(b);
    const auto length = end[b] - begin[b];
    if (length == 0) {
      empty.push_back(sequence);
    } else if (length < tokens + tokens / 2) {
      segments.push_back({sequence, begin[b], 0, length, length, -1});
      in_unit += length;
      if (in_unit >= tokens) {
        close();
      }
    } else {
      close();
      const auto count = divided_up(length, tokens);
      const auto each = divided_up(divided_up(length, count), kTile) * kTile;
      Split split{sequence, parts, 0};
      for (int64_t first = 0; first < length; first += each, ++split.parts) {
        in_unit = std::min(each, length - first);
        segments.push_back({sequence, begin[b] + first, first, in_unit, length, parts++});
        close();
      }
      splits.push_back(split);
    }
  }
  close();
}

}  // namespace dba::ops::cpu

#include "ops/cpu/work_plan.h"

#include <algorithm>

#include "ops/cpu/unit_size.h"

namespace dba::ops::cpu {
namespace {

std::vector<int64_t> values(const at::Tensor& bounds) {
  const auto plain = bounds.to(at::kLong).contiguous();
  const auto* const data = plain.const_data_ptr<int64_t>();
  return {data, data + plain.numel()};
}

}  // namespace

WorkPlan::WorkPlan(const at::Tensor& begin_, const at::Tensor& end_, int64_t sums_per_unit)
    : begin(values(begin_)), end(values(end_)) {
  int64_t tokens = 0;
  int64_t total = 0;  // weight
  for (size_t b = 0; b < begin.size(); ++b) {
    const auto length = end[b] - begin[b];
    tokens += length;
    total += length == 0 ? 0 : length + kTokensOfCore;
  }
  const auto count = unit_count(tokens, sums_per_unit);
  const auto unit = (total + count - 1) / count;

  int64_t before = 0;  // the weight of the sequences before
  int64_t open = 0;    // which unit they fill up
  const auto close = [&] {
    if (first_segment.back() < static_cast<int64_t>(segments.size())) {
      first_segment.push_back(static_cast<int64_t>(segments.size()));
    }
  };
  first_segment.push_back(0);
  for (size_t b = 0; b < begin.size(); ++b) {
    const auto sequence = static_cast<int64_t>(b);
    const auto length = end[b] - begin[b];
    if (length == 0) {
      empty.push_back(sequence);
      continue;
    }
    const auto weight = length + kTokensOfCore;
    const auto split_in = part_count(length, unit);
    if (split_in == 1) {
      // A sequence belongs to the unit that its middle falls into.
      if (const auto middle = (before + weight / 2) / unit; middle != open) {
        close();
        open = middle;
      }
      segments.push_back({sequence, begin[b], 0, length, length, -1});
    } else {
      close();
      const auto tiles = (length + kTile - 1) / kTile;
      const auto parts_of_it = std::min(split_in, tiles);
      splits.push_back({sequence, parts, parts_of_it});
      for (int64_t i = 0; i < parts_of_it; ++i) {
        const auto first = i * tiles / parts_of_it * kTile;
        const auto last = std::min((i + 1) * tiles / parts_of_it * kTile, length);
        segments.push_back({sequence, begin[b] + first, first, last - first, length, parts++});
        close();
      }
    }
    before += weight;
  }
  close();
}

}  // namespace dba::ops::cpu

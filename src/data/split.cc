#include "dba/data/split.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "dba/data/random.h"

namespace dba::data {
namespace {

struct Stratum {
  std::vector<std::size_t> members;
  std::size_t quota = 0;
  double remainder = 0;
};

// Quotas that add up to about fraction × n: the whole parts, and one more for the largest remainders.
void set_quotas(std::map<std::int32_t, Stratum>& strata, std::size_t n, double fraction) {
  std::size_t given = 0;
  std::vector<Stratum*> by_remainder;
  for (auto& [label, stratum] : strata) {
    const double share = fraction * static_cast<double>(stratum.members.size());
    stratum.quota = static_cast<std::size_t>(share);
    stratum.remainder = share - std::floor(share);
    given += stratum.quota;
    by_remainder.push_back(&stratum);
  }
  std::ranges::stable_sort(by_remainder, std::ranges::greater{}, &Stratum::remainder);
  const auto wanted = static_cast<std::size_t>(std::llround(fraction * static_cast<double>(n)));
  for (std::size_t i = 0; i < by_remainder.size() && given < wanted; ++i, ++given)
    ++by_remainder[i]->quota;
  for (auto& [label, stratum] : strata) {
    const std::size_t size = stratum.members.size();
    stratum.quota = size < 2 ? 0 : std::clamp<std::size_t>(stratum.quota, 1, size - 1);
  }
}

}  // namespace

Split hold_out(std::span<const std::int32_t> labels, double fraction, std::uint64_t seed) {
  if (!(fraction > 0 && fraction < 1))
    throw std::invalid_argument("hold_out: fraction: expected more than 0 and less than 1, got " +
                                std::to_string(fraction));
  std::map<std::int32_t, Stratum> strata;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 0) {
      throw std::invalid_argument("hold_out: labels: example " + std::to_string(i) + " has no label (" +
                                  std::to_string(labels[i]) + ")");
    }
    strata[labels[i]].members.push_back(i);
  }
  set_quotas(strata, labels.size(), fraction);
  Split split;
  for (auto& [label, stratum] : strata) {
    std::vector<std::pair<std::uint64_t, std::size_t>> drawn;  // a random key and the index
    for (const std::size_t i : stratum.members)
      drawn.emplace_back(CounterRandom(seed, i).next(), i);
    std::ranges::sort(drawn);
    for (std::size_t i = 0; i < drawn.size(); ++i)
      (i < stratum.quota ? split.held_out : split.kept).push_back(drawn[i].second);
  }
  std::ranges::sort(split.kept);
  std::ranges::sort(split.held_out);
  return split;
}

}  // namespace dba::data

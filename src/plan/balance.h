#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/unit_size.h"

namespace dba::plan {

/// How evenly the CPU kernels spread a batch of equal sequences over the threads.
struct Balance {
  int64_t units = 1;     ///< of work
  bool split = false;    ///< whether sequences have several
  double waiting = 1.0;  ///< the longest thread's share, times the number of threads: 1 where all have the same
};

/// Of `count` like pieces.
inline double waiting_for(int64_t count, int64_t threads) {
  const auto longest = (count + threads - 1) / threads;
  return static_cast<double>(longest * threads) / static_cast<double>(std::max<int64_t>(count, 1));
}

/// Of a streaming pass; the same cut as ops::cpu::WorkPlan's.
inline Balance balance_of_pass(int64_t sequences, int64_t length, int64_t threads, int64_t sums_per_unit) {
  if (sequences < 1 || length < 1) {
    return {};
  }
  const auto weight = sequences * (length + ops::cpu::kTokensOfCore);
  const auto count = ops::cpu::unit_count(sequences * length, sums_per_unit);
  const auto parts = ops::cpu::part_count(length, (weight + count - 1) / count);
  if (parts > 1) {
    return {sequences * parts, true, waiting_for(sequences * parts, threads)};
  }
  const auto units = std::min(count, sequences);
  const auto first_thread = (units + threads - 1) / threads;
  const auto of_first = (2 * first_thread * sequences + units) / (2 * units);  // sequences, about
  return {units, false, std::max(1.0, static_cast<double>(of_first * threads) / static_cast<double>(sequences))};
}

/// Of a forward that takes stacks of sequences through the whole layer, where no sequence is split: the threads take
/// stacks, not units.
inline Balance balance_of_stacks(Balance of_units, int64_t sequences, int64_t d_p, int64_t threads) {
  const auto most = std::max<int64_t>(ops::cpu::kRowsOfStack / std::max<int64_t>(d_p, 1), 1);
  const auto in_unit = (sequences + of_units.units - 1) / of_units.units;
  const auto stacks = of_units.units * ((in_unit + most - 1) / most);
  of_units.waiting = std::min(of_units.waiting, waiting_for(stacks, threads));
  return of_units;
}

/// Of core where it is an operator of its own: stacks of sequences, as ops::cpu::CoreStacks makes them.
inline Balance balance_of_core(int64_t sequences, int64_t d_p, int64_t threads) {
  constexpr int64_t kRows = 96, kThreads = 8;
  const auto most = d_p < kRows ? kRows / std::max<int64_t>(d_p, 1) : 1;
  const auto least = (sequences + most - 1) / most;
  const auto stacks = std::min(sequences, (least + kThreads - 1) / kThreads * kThreads);
  return {std::max<int64_t>(stacks, 1), false, stacks < 1 ? 1.0 : waiting_for(stacks, threads)};
}

}  // namespace dba::plan

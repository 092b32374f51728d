#pragma once

#include <limits>
#include <string>
#include <vector>

#include "bench/check.h"
#include "bench/counts.h"
#include "bench/memory.h"
#include "bench/settings.h"

namespace dba::bench {

/// `skipped`: it would not fit; `wrong`: the numbers are; `failed`: it could not be run; `stopped`: by a signal.
enum class Status { ok, skipped, wrong, failed, stopped };

std::string to_string(Status status);

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// Of a sorted or unsorted list; a value between two entries is their weighted mean. All NaN for an empty list.
struct Quartiles {
  double low = kUnknown;
  double median = kUnknown;
  double high = kUnknown;
};
Quartiles quartiles_of(std::vector<double> values);

/// One figure of the table.
struct Result {
  std::string method;
  Case one;
  Pass pass = Pass::forward;
  Cache cache = Cache::warm;
  Status status = Status::ok;
  std::string reason;  ///< why there is no time
  Quartiles seconds;
  int64_t samples = 0;
  int64_t calls_per_sample = 0;
  std::string clock;
  PeakMemory memory;
  int64_t parameter_bytes = 0;
  Cost cost;
  Verdict verdict;
  std::vector<double> ratios;  ///< times faster than each baseline of the settings; NaN where one has no time
};

/// Fills in the ratios: the baseline's median over the result's, at the same case, pass and cache.
void add_ratios(std::vector<Result>& results, const std::vector<std::string>& baselines);

}  // namespace dba::bench

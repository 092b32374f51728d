#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/result.h"

namespace dba::bench {

/// What a measurement tells and asks of its caller.
struct Watcher {
  std::function<void(int64_t done, int64_t total)> progress = [](int64_t, int64_t) {};
  std::function<void(const std::string& sentence)> say = [](const std::string&) {};
  /// Whether to end now; what has been measured is kept.
  std::function<bool()> stop = [] { return false; };
};

/// Measures every method at every case: estimates the memory, checks the numbers, then lets the methods take turns
/// under the clock. A method that does not fit, is wrong or cannot run gets a result without a time and a sentence.
std::vector<Result> measure(const Settings& settings, const Watcher& watcher);

}  // namespace dba::bench

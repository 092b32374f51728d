#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"

namespace dba::bench {

/// Small sizes, one case, three repeats; the first method is the baseline.
inline Settings small(const std::vector<std::string>& methods) {
  Settings settings;
  for (const auto& name : methods) {
    settings.methods.push_back(parse_method(name));
  }
  settings.baselines = {methods.front()};
  settings.sizes = {.d = 16, .heads = 2, .d_p = 4, .d_in = 8, .d_ffn = 32, .depth = 2};
  settings.cases = {{24, 2, Precision::float32, 1}};
  settings.repeats = 3;
  settings.seconds = 0.0;
  return settings;
}

/// What a measurement of `median` seconds would have given.
inline Result timed(const std::string& method, double median, int64_t length = 64) {
  Result result;
  result.method = method;
  result.one = {length, 2, Precision::float32, 1};
  result.seconds = {median / 2, median, median * 2};
  result.samples = 3;
  result.clock = "clock";
  result.verdict.right = true;
  result.verdict.length = length;
  return result;
}

}  // namespace dba::bench

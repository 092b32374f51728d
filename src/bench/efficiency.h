#pragma once

#include <functional>
#include <string>
#include <vector>

#include "reproduce/efficiency.h"

namespace dba::bench {

/// What `dba reproduce efficiency` measures.
struct EfficiencyOptions {
  std::string device = "cpu";
  std::string dtype = "float32";
  std::vector<std::string> methods;
  std::vector<std::int64_t> lengths;
  std::int64_t batch = 32;
  double seconds = 0.15;      ///< spent on a figure, about
  std::int64_t repeats = 10;  ///< samples of a figure, at most
  /// A method whose call takes longer than this at one length is not measured at longer ones.
  double longest_call = 1.0;
  bool retake = false;  ///< whether figures of other builds are taken again
  std::function<void(const std::string& sentence)> say = [](const std::string&) {};
  std::function<void(std::int64_t done, std::int64_t total)> progress = [](std::int64_t, std::int64_t) {};
  std::function<bool()> stop = [] { return false; };
};

/// Measures the cells that are not in `results` yet, length by length, and calls `save` after each method at a length.
/// Every method is compared with float64 at the shortest length and at the first one from 1,024 tokens on, where
/// members that have blocks need more than a few of them, unless it was measured there before. Cells without a right
/// number are tried again. False after `stop`.
bool measure_efficiency(const EfficiencyOptions& options, reproduce::EfficiencyResults& results,
                        const std::function<void()>& save);

}  // namespace dba::bench

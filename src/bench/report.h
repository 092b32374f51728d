#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/result.h"

namespace dba::bench {

/// All that a run of the benchmark says.
struct Report {
  std::vector<std::pair<std::string, std::string>> machine;  ///< name and value, in the order of the header
  Settings settings;
  std::vector<Result> results;
  bool complete = true;  ///< false after a signal
};

/// A header and a table per pass, cache, dtype and number of threads, for people.
std::string to_text(const Report& report);
/// A line per figure.
std::string to_csv(const Report& report);
/// One object: what bench/compare and bench/plot read.
std::string to_json(const Report& report);

}  // namespace dba::bench

#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "reproduce/places.h"
#include "reproduce/train_words.h"

namespace dba::reproduce {

struct Outcome {
  std::size_t finished = 0;  ///< of the given runs, with those that were finished before
  std::size_t without_data = 0;
  std::vector<std::string> failures;   ///< a sentence each, with the path of the log
  std::vector<std::string> elsewhere;  ///< names of runs that another process was making, and that it has not finished
  std::size_t unfinished = 0;          ///< for want of time; every run can go on
  int signal = 0;                      ///< not 0: stopped by it; every run can go on
};

/// Makes what is missing in `jobs` processes at a time and writes each result when its run ends. Where there are more
/// runs than jobs, a process makes several seeds of one configuration.
/// A run that fails does not stop the others. One that another process is making is left to it. SIGINT and SIGTERM are
/// handed on to the runs, which save and stop. Call it with no StopSignals in place.
Outcome make_missing(const Experiment& experiment, std::span<const Run> runs, const Places& places,
                     const RunnerOptions& options);

struct Page {
  std::filesystem::path file;
  std::vector<std::string> doubts;    ///< see FoundParts and compare_with_recipes; the page says them too
  std::vector<std::string> left_out;  ///< what is wrong with results that cannot be read, a sentence each
};

/// Writes results/<experiment>/README.md from the results that are there.
Page write_page(const Experiment& experiment, const Places& places);

}  // namespace dba::reproduce

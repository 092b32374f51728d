#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reproduce/experiment.h"

namespace dba::reproduce {

/// Where things lie.
struct Places {
  std::filesystem::path data, configs, runs, results;

  std::filesystem::path run_folder(const Run& run) const {
    return runs / run.name();
  }
  /// What the run prints, beside its folder.
  std::filesystem::path log(const Run& run) const {
    return runs / (run.name() + ".log");
  }
  std::filesystem::path result(const Run& run) const {
    return results / (run.name() + ".json");
  }
};

enum class State {
  finished,     ///< its result is written, or its report, from which the result is made without training
  interrupted,  ///< its folder holds a run that has no report: `dba train --resume` goes on with it
  fresh,
  no_data,
};

State state_of(const Run& run, const Places& places);
std::string to_string(State state);

/// The files and folders of data that the run needs and that are not there.
std::vector<std::filesystem::path> missing_data(const Run& run, const Places& places);

struct RunnerOptions {
  std::string program = "/proc/self/exe";  ///< what is started with `train …`
  std::size_t jobs = 1;
  std::int64_t threads = 0;                                  ///< of each run; 0: as many as the configuration says
  std::string device;                                        ///< empty: as the configuration says
  std::vector<std::string> overrides;                        ///< for all runs, above all else
  bool bfloat16 = true;                                      ///< false: there is no GPU, runs use float32 instead
  double seconds = 0;                                        ///< not 0: then all runs save and stop, to go on later
  bool quiet = false;                                        ///< errors only
  std::vector<std::pair<std::string, std::string>> machine;  ///< kept with every result
};

/// The words after the program's name that train, or go on with, a run, but for the time it may take.
std::vector<std::string> train_words(const Run& run, const Places& places, const RunnerOptions& options);
/// Those that train fresh runs that differ in the seed alone, one after the other.
std::vector<std::string> train_words(const std::vector<const Run*>& group, const Places& places,
                                     const RunnerOptions& options);

struct Outcome {
  std::size_t finished = 0;  ///< of the given runs, with those that were finished before
  std::size_t without_data = 0;
  std::vector<std::string> failures;  ///< a sentence each, with the path of the log
  std::size_t unfinished = 0;         ///< for want of time; every run can go on
  int signal = 0;                     ///< not 0: stopped by it; every run can go on
};

/// Makes what is missing in `jobs` processes at a time and writes each result when its run ends. Where there are more
/// runs than jobs, a process makes several seeds of one configuration.
/// A run that fails does not stop the others. SIGINT and SIGTERM are handed on to the runs, which save and stop.
/// Call it with no StopSignals in place.
Outcome make_missing(const Experiment& experiment, std::span<const Run> runs, const Places& places,
                     const RunnerOptions& options);

/// Writes results/<experiment>/README.md from the results that are there and returns its path.
std::filesystem::path write_page(const Experiment& experiment, const Places& places);

}  // namespace dba::reproduce

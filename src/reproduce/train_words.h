#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "reproduce/places.h"

/// From a run of an experiment to the call of `dba train` that makes it.
namespace dba::reproduce {

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

/// Whether the run's configuration wants bfloat16 and the machine has none.
bool falls_back_to_float32(const Run& run, const Places& places, const RunnerOptions& options);

/// The words after the program's name that train, or go on with, a run, but for the time it may take.
std::vector<std::string> train_words(const Run& run, const Places& places, const RunnerOptions& options);
/// Those that train fresh runs that differ in the seed alone, one after the other.
std::vector<std::string> train_words(const std::vector<const Run*>& group, const Places& places,
                                     const RunnerOptions& options);

}  // namespace dba::reproduce

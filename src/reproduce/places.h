#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reproduce/experiment.h"

namespace dba::reproduce {

/// Where things lie.
struct Places {
  std::filesystem::path data, configs, runs, results;

  std::filesystem::path run_folder(const Run& run) const {
    return runs / run.name();
  }
  std::filesystem::path report(const Run& run) const {
    return run_folder(run) / "report.json";
  }
  /// What the run prints, beside its folder.
  std::filesystem::path log(const Run& run) const {
    return runs / (run.name() + ".log");
  }
  /// Who makes it at the moment, a process of `dba reproduce`; beside its folder too.
  std::filesystem::path lock(const Run& run) const {
    return runs / (run.name() + ".lock");
  }
  std::filesystem::path result(const Run& run) const {
    return results / (run.name() + ".json");
  }
  /// A ready cache, DATA/task/train.cache for data.train, or the first of the names in Run::data that is there, or the
  /// first one.
  std::filesystem::path data_of(const Run& run, const std::string& key, const std::string& names) const;
};

/// How a run stands, by the files that are there.
enum class State {
  finished,     ///< its result is written and whole, or its report, from which the result is made without training
  interrupted,  ///< its folder holds a run that has no whole report: `dba train --resume` goes on with it
  fresh,
  no_data,
};

/// Of the file that holds its result; damaged: it cannot be read, or is another run's.
enum class ResultFile { absent, damaged, whole };

ResultFile result_file(const Run& run, const Places& places);

/// Of report.json in the run's folder; report_fault says what is wrong with one that is not whole.
bool has_whole_report(const Run& run, const Places& places);

/// With `result` for a caller who knows it already: to look it up is to read the file.
State state_of(const Run& run, const Places& places, ResultFile result);
State state_of(const Run& run, const Places& places);
std::string to_string(State state);

/// The files and folders of data that the run needs and that are not there.
std::vector<std::filesystem::path> missing_data(const Run& run, const Places& places);

}  // namespace dba::reproduce

#include "reproduce/places.h"

#include <algorithm>

#include "dba/data/data_path.h"
#include "reproduce/result.h"
#include "run/folders.h"

namespace dba::reproduce {

std::filesystem::path Places::data_of(const Run& run, const std::string& key, const std::string& names) const {
  const auto ready = data / run.task / (key.substr(key.find('.') + 1) + ".cache");
  if (run::is_there(ready))
    return ready;
  for (std::size_t begin = 0; begin < names.size();) {
    const auto end = std::min(names.find('|', begin), names.size());
    const auto path = data / names.substr(begin, end - begin);
    if (run::is_there(dba::data::DataPath::parse(path).path))
      return path;
    begin = end + 1;
  }
  return data / names.substr(0, names.find('|'));
}

std::string to_string(State state) {
  switch (state) {
    case State::finished:
      return "finished";
    case State::interrupted:
      return "interrupted";
    case State::fresh:
      return "to do";
    case State::no_data:
      break;
  }
  return "no data";
}

std::vector<std::filesystem::path> missing_data(const Run& run, const Places& places) {
  std::vector<std::filesystem::path> missing;
  for (const auto& [key, names] : run.data) {
    const auto path = data::DataPath::parse(places.data_of(run, key, names)).path;
    if (!run::is_there(path))
      missing.push_back(path);
  }
  return missing;
}

ResultFile result_file(const Run& run, const Places& places) {
  if (!run::is_there(places.result(run)))
    return ResultFile::absent;
  try {
    const Result result = read_result(places.result(run));
    const bool own = result.task == run.task && result.method == run.method && result.variant == run.variant &&
                     result.seed == run.seed;
    return own ? ResultFile::whole : ResultFile::damaged;
  } catch (const std::exception&) {
    return ResultFile::damaged;
  }
}

bool has_whole_report(const Run& run, const Places& places) {
  return run::is_there(places.report(run)) && report_fault(places.run_folder(run)).empty();
}

State state_of(const Run& run, const Places& places) {
  return state_of(run, places, result_file(run, places));
}

State state_of(const Run& run, const Places& places, ResultFile result) {
  if (result == ResultFile::whole || has_whole_report(run, places))
    return State::finished;
  if (!missing_data(run, places).empty())
    return State::no_data;
  return run::is_there(places.run_folder(run) / "config.yaml") ? State::interrupted : State::fresh;
}

}  // namespace dba::reproduce

#include "reproduce/train_words.h"

#include <algorithm>

#include "dba/config/config_file.h"

namespace dba::reproduce {

bool falls_back_to_float32(const Run& run, const Places& places, const RunnerOptions& options) {
  return !options.bfloat16 && config::load_config(places.configs / run.config).precision == "bfloat16";
}

std::vector<std::string> train_words(const Run& run, const Places& places, const RunnerOptions& options) {
  const auto folder = places.run_folder(run).string();
  if (state_of(run, places) == State::interrupted)
    return {"train", "--resume", folder};
  std::vector<std::string> words = {"train", "--config", (places.configs / run.config).string(), "--run", folder};
  const auto set = [&](const std::string& assignment) {
    words.emplace_back("--set");
    words.push_back(assignment);
  };
  for (const auto& [key, names] : run.data)
    set(key + "=" + places.data_of(run, key, names).string());
  // Runs of one task read the same data.
  set("data.cache=" + (places.runs / "cache" / run.task).string());
  set("seed=" + std::to_string(run.seed));
  for (const std::string& assignment : run.overrides)
    set(assignment);
  if (!options.device.empty())
    set("device=" + options.device);
  if (falls_back_to_float32(run, places, options))
    set("precision=float32");
  if (options.threads > 0)
    set("threads=" + std::to_string(options.threads));
  for (const std::string& assignment : options.overrides)
    set(assignment);
  return words;
}

std::vector<std::string> train_words(const std::vector<const Run*>& group, const Places& places,
                                     const RunnerOptions& options) {
  auto words = train_words(*group.front(), places, options);
  if (group.size() == 1)
    return words;
  const auto folder = places.run_folder(*group.front()).string();
  std::ranges::replace(words, folder, folder.substr(0, folder.rfind("-seed")));
  std::string seeds;
  for (const Run* run : group)
    seeds += (seeds.empty() ? "" : ",") + std::to_string(run->seed);
  words.insert(words.end(), {"--seeds", seeds});
  return words;
}

}  // namespace dba::reproduce

#include "reproduce/settings.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>

#include "dba/config/config_file.h"
#include "reproduce/shortened.h"

namespace dba::reproduce {
namespace {

using Json = nlohmann::ordered_json;

/// Which of several runs, and where and how it is made, kept and watched: the model comes out the same, or the result
/// says it apart. Of data.too_long both choices are the same wherever both finish: nothing was too long.
constexpr std::array<std::string_view, 12> kNoPartOfTheRecipe = {"seed",
                                                                 "device",
                                                                 "threads",
                                                                 "data.cache",
                                                                 "data.too_long",
                                                                 "batch.prefetch",
                                                                 "train.keep",
                                                                 "train.log_every",
                                                                 "train.checkpoint_every",
                                                                 "train.checkpoint_seconds",
                                                                 "expect.update",
                                                                 "expect.accuracy"};

using Settings = std::vector<std::pair<std::string, Json>>;  // key and value, in the order of the keys

Settings settings_of(const std::string& config) {
  Settings settings;
  const Json json = Json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return settings;
  for (const auto& [name, value] : json.items()) {
    if (!value.is_object()) {
      settings.emplace_back(name, value);
      continue;
    }
    for (const auto& [last_name, setting] : value.items())
      settings.emplace_back(name + "." + last_name, setting);
  }
  return settings;
}

config::TrainConfig recipe_of(const Run& run, const std::filesystem::path& configs) {
  auto config = config::load_config(configs / run.config);
  for (const std::string& assignment : run.overrides)
    config::apply_override(config, assignment);
  return config;
}

const Json* find(const Settings& settings, const std::string& key) {
  const auto found = std::ranges::find(
      settings, key, [](const auto& setting) -> const auto& { return setting.first; });
  return found == settings.end() ? nullptr : &found->second;
}

std::string assignment(const std::string& key, const Json& value) {
  return key + "=" + (value.is_string() ? value.get<std::string>() : value.dump());
}

std::vector<std::string> split(const std::string& names) {
  std::vector<std::string> parts;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, '|');)
    parts.push_back(name);
  return parts;
}

/// Whether a result names its data so: one of the layouts that are known, in early results several of them, or a ready
/// cache. Which data they were is for the digests to say.
bool is_known_data(const Run& run, const std::string& key, const Json& value) {
  const auto data = std::ranges::find(
      run.data, key, [](const auto& one) -> const auto& { return one.first; });
  if (data == run.data.end() || !value.is_string())
    return false;
  auto known = split(data->second);
  known.push_back(key.substr(key.find('.') + 1) + ".cache");
  const auto names = split(value.get<std::string>());
  return std::ranges::find_first_of(names, known) != names.end();
}

/// Whether a setting makes another run of it.
bool differs(const Run& run, const std::string& key, const Json& value, const Json& other) {
  return value != other && std::ranges::find(kNoPartOfTheRecipe, key) == kNoPartOfTheRecipe.end() &&
         !is_known_data(run, key, value);
}

/// The run that a result is of; nothing where the experiment has none such.
std::optional<Run> run_of(const Experiment& experiment, const Result& result, const std::filesystem::path& configs) {
  const auto task = std::ranges::find(experiment.tasks, result.task, &Task::name);
  const auto method = std::ranges::find(experiment.methods, result.method, &Method::name);
  if (task == experiment.tasks.end() || method == experiment.methods.end())
    return std::nullopt;
  const auto fewer = parse_shortened(result.variant);
  auto run = experiment.run(*task, *method, fewer ? fewer->of : result.variant, result.seed);
  if (run && fewer)
    run = shortened(*run, fewer->updates, config::load_config(configs / run->config));
  return run;
}

}  // namespace

std::vector<std::string> changed_settings(const Run& run, const std::string& config,
                                          const std::filesystem::path& configs) {
  const auto defaults = settings_of(config::to_json({}));
  const auto settings = settings_of(config);
  std::vector<std::string> changed;
  for (const auto& [key, recipe] : settings_of(config::to_json(recipe_of(run, configs)))) {
    const Json* own = find(settings, key);
    const Json& value = own ? *own : *find(defaults, key);
    if (differs(run, key, value, recipe))
      changed.push_back(assignment(key, value));
  }
  return changed;
}

std::vector<std::string> not_as_wanted(const Run& run, const std::string& config, const std::filesystem::path& configs,
                                       std::span<const std::string> overrides) {
  auto wanted = recipe_of(run, configs);
  for (const std::string& override_ : overrides)
    config::apply_override(wanted, override_);
  const auto wanted_settings = settings_of(config::to_json(wanted));
  std::vector<std::string> others;
  for (const auto& [key, value] : settings_of(config)) {
    const bool named = std::ranges::any_of(
        overrides, [&key = key](const std::string& override_) { return override_.starts_with(key + "="); });
    const Json* other = named ? find(wanted_settings, key) : nullptr;
    if (other && differs(run, key, value, *other))
      others.push_back(assignment(key, value));
  }
  return others;
}

std::vector<std::string> compare_with_recipes(const Experiment& experiment, std::span<Result> results,
                                              const std::filesystem::path& configs) {
  std::map<std::string, std::string> files;  // by what keeps their recipe from being read
  for (Result& result : results) {
    try {
      if (const auto run = run_of(experiment, result, configs))
        result.changed = changed_settings(*run, result.config, configs);
    } catch (const std::exception& error) {
      if (auto& list = files[error.what()]; !result.changed)
        list += (list.empty() ? "" : ", ") + result.file;
    }
  }
  std::vector<std::string> unknown;
  for (const auto& [error, list] : files)
    if (!list.empty())
      unknown.push_back(list + ": nobody can tell whether the settings are the recipe's (" + error +
                        "); start in the root of the sources, or name --configs");
  return unknown;
}

}  // namespace dba::reproduce

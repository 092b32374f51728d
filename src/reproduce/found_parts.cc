#include "reproduce/found_parts.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "bytes/count.h"
#include "reproduce/shortened.h"

namespace dba::reproduce {
namespace {

void part_by_data(FoundParts& parts) {
  if (!parts.experiment.other_data)
    return;
  auto& tasks = parts.experiment.tasks;
  for (Result& result : parts.results) {
    const std::string other = parts.experiment.other_data(result.task, result.training_examples);
    const auto task = std::ranges::find(tasks, result.task, &Task::name);
    if (other.empty() || task == tasks.end())
      continue;
    result.task += " (" + other + ")";
    if (std::ranges::find(tasks, result.task, &Task::name) == tasks.end())
      tasks.insert(task + 1, {result.task, task->title + " (" + other + ")", /*other_data=*/true});
  }
}

/// "`model.layers=1`, `data.leave_out=[0]`"; empty for a result of the recipe.
std::string name_of_settings(const Result& result) {
  std::string name;
  if (result.changed)
    for (const std::string& setting : *result.changed)
      name += (name.empty() ? "`" : ", `") + setting + "`";
  return name;
}

/// The recipe's results stay in the row of the task. Several choices of settings where one table would have had one row
/// are a doubt as well.
void part_by_settings(FoundParts& parts) {
  using Files = std::map<std::string, std::string>;  // by the name of the settings
  const auto add = [](Files& files, const std::string& name, const std::string& file) {
    files[name] += (files[name].empty() ? "" : ", ") + file;
  };
  const auto tasks = parts.experiment.tasks;
  for (const Task& task : tasks) {
    Files trials;
    std::map<std::string, Files> variants;
    for (Result& result : parts.results) {
      if (result.task != task.name)
        continue;
      const std::string name = name_of_settings(result);
      add(variants[result.variant], name.empty() ? "the recipe" : name, result.file);
      if (name.empty())
        continue;
      add(trials, name, result.file);
      result.task += " (" + name + ")";
    }
    auto row = std::ranges::find(parts.experiment.tasks, task.name, &Task::name);
    for (const auto& [name, files] : trials) {
      const std::string title = task.title + " (" + name + ")";
      row = parts.experiment.tasks.insert(row + 1, {task.name + " (" + name + ")", title, /*other_data=*/true});
      parts.trials.push_back(title + ": " + files);
    }
    for (const auto& [variant, choices] : variants) {
      if (choices.size() < 2)
        continue;
      std::string doubt;
      for (const auto& [name, files] : choices)
        doubt += (doubt.empty() ? "" : "; ") + name + ": " + files;
      parts.doubts.push_back(task.title + ": the results were made with different settings and are not averaged (" +
                             doubt + "); move those that do not belong here to a folder of their own");
    }
  }
}

using Digests = std::map<std::string, std::string>;  // by part

/// Results that may have been made on the same data.
struct SameData {
  Digests data;                     // all that they have
  std::vector<std::size_t> places;  // among the results
};

bool differ(const Digests& a, const Digests& b) {
  return std::ranges::any_of(a, [&](const auto& digest) {
    const auto other = b.find(digest.first);
    return other != b.end() && other->second != digest.second;
  });
}

/// Those of a task that have digests. One with fewer of them than others goes to the first that it does not contradict.
std::vector<SameData> by_data(const std::string& task, std::span<const Result> results) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].task == task && !results[i].data.empty())
      places.push_back(i);
  }
  std::ranges::stable_sort(places, std::greater<>(), [&](std::size_t place) { return results[place].data.size(); });
  std::vector<SameData> sets;
  for (const std::size_t place : places) {
    const Digests& data = results[place].data;
    auto found = std::ranges::find_if(sets, [&](const SameData& set) { return !differ(set.data, data); });
    if (found == sets.end())
      found = sets.insert(sets.end(), SameData{});
    found->data.insert(data.begin(), data.end());
    found->places.push_back(place);
  }
  return sets;
}

/// "training data 0a1b2c3d", for those of the parts in which the data sets differ.
std::string name_of_data(const Digests& data, std::span<const SameData> all) {
  constexpr std::size_t kShown = 8;
  std::string name;
  for (const auto& one : data) {
    if (std::ranges::any_of(all, [&](const SameData& other) { return differ({one}, other.data); }))
      name += (name.empty() ? "" : ", ") + one.first + " data " + one.second.substr(0, kShown);
  }
  return name;
}

void part_by_digests(FoundParts& parts) {
  const auto before = parts.results;
  const auto tasks = parts.experiment.tasks;
  for (const Task& task : tasks) {
    const auto sets = by_data(task.name, before);
    if (sets.size() < 2)
      continue;
    auto row = std::ranges::find(parts.experiment.tasks, task.name, &Task::name);
    std::string doubt;
    for (const auto& [data, places] : sets) {
      const std::string name = name_of_data(data, sets);
      std::string files;
      for (const std::size_t place : places) {
        files += (files.empty() ? "" : ", ") + before[place].file;
        parts.results[place].task += " (" + name + ")";
      }
      doubt += (doubt.empty() ? "" : "; ") + name + ": " + files;
      row = parts.experiment.tasks.insert(
          row + 1, {task.name + " (" + name + ")", task.title + " (" + name + ")", /*other_data=*/true});
    }
    parts.doubts.push_back(task.title + ": the results were made on different data and are not averaged (" + doubt +
                           "); move those that do not belong here to a folder of their own");
  }
}

void add_shortened(FoundParts& parts) {
  std::set<std::string> variants;
  for (const Result& result : parts.results)
    variants.insert(result.variant);
  auto& sections = parts.experiment.sections;
  const auto whole = sections;
  for (const std::string& variant : variants) {
    const auto shortened = parse_shortened(variant);
    if (!shortened)
      continue;
    for (Section section : whole) {
      if (section.variant != shortened->of)
        continue;
      const auto updates = bytes::counted(shortened->updates, "update");
      section.variant = variant;
      section.heading = "Shortened to " + updates + ": " + section.heading;
      section.text = "Trials with " + updates +
                     " a run, the schedule shortened alike: how the methods compare after so little training. " +
                     section.text;
      section.beside_paper = false;
      sections.push_back(section);
    }
  }
}

}  // namespace

FoundParts found_parts(const Experiment& experiment, std::span<const Result> results) {
  FoundParts parts{experiment, {results.begin(), results.end()}, {}, {}};
  part_by_data(parts);
  part_by_settings(parts);
  part_by_digests(parts);
  add_shortened(parts);
  return parts;
}

}  // namespace dba::reproduce

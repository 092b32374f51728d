#include "reproduce/found_parts.h"

#include <algorithm>
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

using Digests = std::map<std::string, std::string>;  // by part

/// Those of the parts that all results of the task have, of the results that have any.
Digests comparable(const Result& result, std::span<const Result> results) {
  Digests digests = result.data;
  for (const Result& other : results) {
    if (other.task == result.task && !other.data.empty())
      std::erase_if(digests, [&](const auto& digest) { return !other.data.contains(digest.first); });
  }
  return digests;
}

using ByData = std::map<Digests, std::vector<std::size_t>>;  // places among the results

/// "training data 0a1b2c3d", for those of the parts in which the data sets differ.
std::string name_of_data(const Digests& data, const ByData& all) {
  constexpr std::size_t kShown = 8;
  std::string name;
  for (const auto& [part, digest] : data) {
    if (std::ranges::any_of(all, [&](const auto& other) { return other.first.at(part) != digest; }))
      name += (name.empty() ? "" : ", ") + part + " data " + digest.substr(0, kShown);
  }
  return name;
}

void part_by_digests(FoundParts& parts) {
  const auto before = parts.results;
  const auto tasks = parts.experiment.tasks;
  for (const Task& task : tasks) {
    ByData by_data;
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (before[i].task != task.name || before[i].data.empty())
        continue;
      by_data[comparable(before[i], before)].push_back(i);
    }
    if (by_data.size() < 2)
      continue;
    std::string doubt;
    for (const auto& [data, places] : by_data) {
      const std::string name = name_of_data(data, by_data);
      std::string files;
      for (const std::size_t place : places) {
        files += (files.empty() ? "" : ", ") + before[place].file;
        parts.results[place].task += " (" + name + ")";
      }
      doubt += (doubt.empty() ? "" : "; ") + name + ": " + files;
      const auto row = std::ranges::find(parts.experiment.tasks, task.name, &Task::name);
      parts.experiment.tasks.insert(
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
  FoundParts parts{experiment, {results.begin(), results.end()}, {}};
  part_by_data(parts);
  part_by_digests(parts);
  add_shortened(parts);
  return parts;
}

}  // namespace dba::reproduce

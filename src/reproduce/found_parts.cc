#include "reproduce/found_parts.h"

#include <algorithm>
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
  FoundParts parts{experiment, {results.begin(), results.end()}};
  part_by_data(parts);
  add_shortened(parts);
  return parts;
}

}  // namespace dba::reproduce

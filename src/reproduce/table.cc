#include "reproduce/table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "bytes/listed.h"
#include "reproduce/found_parts.h"

namespace dba::reproduce {
namespace {

std::string percent(double value, int decimals) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values)
    sum += value;
  return sum / static_cast<double>(values.size());
}

/// The accuracies of a section: by task and method, over the seeds.
using Cells = std::map<std::pair<std::string, std::string>, std::vector<double>>;

class SectionTable {
 public:
  SectionTable(const Experiment& experiment, const Section& section, std::span<const Result> results)
      : experiment_(experiment), section_(section) {
    std::set<std::string> tasks, methods;
    for (const Result& result : results) {
      const auto found = result.accuracy.find(section.protocol);
      if (result.variant != section.variant || found == result.accuracy.end())
        continue;
      cells_[{result.task, result.method}].push_back(found->second);
      tasks.insert(result.task);
      methods.insert(result.method);
    }
    std::ranges::copy_if(experiment.tasks, std::back_inserter(tasks_),
                         [&](const Task& task) { return tasks.contains(task.name); });
    std::ranges::copy_if(experiment.methods, std::back_inserter(methods_),
                         [&](const Method& method) { return methods.contains(method.name); });
  }

  bool empty() const {
    return tasks_.empty() || methods_.empty();
  }

  std::string text() const {
    std::string page = "\n## " + section_.heading + "\n\n" + section_.text + "\n\n| " + experiment_.task_word + " | |";
    for (const Method& method : methods_)
      page += " " + method.title + " |";
    page += "\n|---|---|";
    for (std::size_t i = 0; i < methods_.size(); ++i)
      page += "---|";
    page += "\n";
    for (const Task& task : tasks_) {
      page += row("| " + task.title + " | here |",
                  [&](const Method& method) { return mean_and_deviation(cell(task, method), experiment_.decimals); });
      if (beside_paper(task))
        page += row("| | paper |", [&](const Method& method) { return paper_text(task, method); });
    }
    return page + averages();
  }

 private:
  template <typename Content>
  std::string row(std::string begin, const Content& content) const {
    for (const Method& method : methods_) {
      const std::string text = content(method);
      begin += " " + (text.empty() ? "–" : text) + " |";
    }
    return begin + "\n";
  }

  std::span<const double> cell(const Task& task, const Method& method) const {
    const auto found = cells_.find({task.name, method.name});
    return found == cells_.end() ? std::span<const double>() : found->second;
  }

  const PaperFigure* paper(const Task& task, const Method& method) const {
    return method.paper.empty() ? nullptr : paper_figure(experiment_, task.name, method.paper);
  }

  bool beside_paper(const Task& task) const {
    return section_.beside_paper &&
           std::ranges::any_of(methods_, [&](const Method& method) { return paper(task, method) != nullptr; });
  }

  std::string paper_text(const Task& task, const Method& method) const {
    const PaperFigure* figure = paper(task, method);
    if (!figure)
      return "";
    const int decimals = experiment_.decimals;
    return percent(figure->accuracy, decimals) +
           (figure->deviation ? " ± " + percent(*figure->deviation, decimals) : "");
  }

  // Means are comparable over the same tasks only: those that every column has, and of them those of the paper.
  std::string averages() const {
    std::vector<Task> whole, of_paper;
    for (const Task& task : tasks_) {
      const auto has = [&](const Method& method) { return !cell(task, method).empty(); };
      if (task.other_data || !std::ranges::all_of(methods_, has))
        continue;
      whole.push_back(task);
      if (section_.beside_paper && beside_paper(task))
        of_paper.push_back(task);
    }
    std::string rows;
    if (of_paper.size() > 1) {
      rows += average_row(of_paper, "mean of " + paper_tasks(of_paper));
      rows += row("| | paper |", [&](const Method& method) {
        std::vector<double> figures;
        for (const Task& task : of_paper)
          if (const PaperFigure* figure = paper(task, method))
            figures.push_back(figure->accuracy);
        return figures.size() == of_paper.size() ? percent(mean_of(figures), experiment_.decimals) : std::string();
      });
    }
    if (whole.size() > std::max<std::size_t>(1, of_paper.size()))
      rows += average_row(whole, "mean of " + std::to_string(whole.size()));
    return rows;
  }

  /// By name where the table has others of the paper too.
  std::string paper_tasks(const std::vector<Task>& tasks) const {
    const auto all = std::ranges::count_if(tasks_, [&](const Task& task) { return beside_paper(task); });
    if (std::cmp_equal(all, tasks.size()))
      return "the paper's " + std::to_string(tasks.size()) + " above";
    std::vector<std::string> titles;
    for (const Task& task : tasks)
      titles.push_back(task.title);
    return bytes::listed(titles);
  }

  std::string average_row(const std::vector<Task>& tasks, const std::string& label) const {
    return row("| " + label + " | here |", [&](const Method& method) {
      std::vector<double> means;
      for (const Task& task : tasks)
        means.push_back(mean_of(cell(task, method)));
      return percent(100 * mean_of(means), experiment_.decimals);
    });
  }

  const Experiment& experiment_;
  const Section& section_;
  Cells cells_;
  std::vector<Task> tasks_;
  std::vector<Method> methods_;
};

std::string what_ran(std::span<const Result> results) {
  struct Share {
    std::size_t runs = 0;
    double seconds = 0;
  };
  std::map<std::string, Share> shares;
  for (const Result& result : results) {
    std::string machine;
    for (const auto& [name, value] : result.machine)
      machine += (machine.empty() ? "" : "; ") + value;
    auto& share = shares["| " + result.commit + " | " + result.device + " | " + machine + " |"];
    ++share.runs;
    share.seconds += result.seconds;
  }
  std::string page =
      "\n## What ran\n\n| commit | device | machine | runs | hours, all runs added |\n|---|---|---|---|---|\n";
  for (const auto& [place, share] : shares) {
    char text[64];
    std::snprintf(text, sizeof text, " %zu | %.2f |\n", share.runs, share.seconds / 3600);
    page += place + text;
  }
  return page;
}

}  // namespace

std::string mean_and_deviation(std::span<const double> accuracies, int decimals) {
  if (accuracies.empty())
    return "";
  const double mean = mean_of(accuracies);
  double squares = 0;
  for (const double accuracy : accuracies)
    squares += (accuracy - mean) * (accuracy - mean);
  std::string text = percent(100 * mean, decimals);
  if (accuracies.size() > 1)
    text += " ± " + percent(100 * std::sqrt(squares / static_cast<double>(accuracies.size() - 1)), decimals);
  return text + " (" + std::to_string(accuracies.size()) + ")";
}

std::string results_page(const Experiment& planned, std::span<const Result> all,
                         std::span<const std::string> other_doubts) {
  const auto [experiment, results, doubts, trials] = found_parts(planned, all);
  std::string page =
      "# " + experiment.title + "\n\n" + experiment.description +
      "\n\nEach cell: mean ± standard deviation over seeds (number of seeds). Written by `dba reproduce " +
      experiment.name +
      "`; every run has a file of its own in this folder with its configuration, "
      "seed, commit, device, times and curves.\n";
  if (!trials.empty())
    page += "\nRows with settings in their name are trials. They were not made by the recipe, `configs/" +
            experiment.name +
            "`, but with these settings instead; no figure of the paper stands beside them, and no mean counts "
            "them.\n\n";
  for (const std::string& trial : trials)
    page += "- " + trial + "\n";
  for (const auto& list : {other_doubts, std::span<const std::string>(doubts)})
    for (const std::string& doubt : list)
      page += "\n" + doubt + ".\n";
  bool any = false;
  for (const Section& section : experiment.sections) {
    const SectionTable table(experiment, section, results);
    if (!table.empty()) {
      any = true;
      page += table.text();
    }
  }
  return any ? page + what_ran(results) : page + "\nNothing has run yet.\n";
}

}  // namespace dba::reproduce

#include "reproduce/experiment.h"

#include <algorithm>
#include <stdexcept>

#include "bytes/listed.h"
#include "config/keys.h"
#include "dba/bytes/errors.h"

namespace dba::reproduce {
namespace {

/// The chosen ones of `known`, in the order in which they are known.
template <typename Item, typename NameOf>
std::vector<Item> choose(const std::vector<Item>& known, const std::vector<std::string>& wanted, const NameOf& name_of,
                         const std::string& what, const std::string& experiment) {
  std::vector<std::string> names;
  for (const Item& item : known)
    names.push_back(name_of(item));
  for (const std::string& name : wanted) {
    if (std::ranges::find(names, name) == names.end())
      throw std::invalid_argument("dba reproduce " + experiment + ": there is no " + what + " " +
                                  bytes::in_quotes(name) + "; did you mean " + config::nearest_of(name, names) +
                                  "? There are: " + bytes::listed(names));
  }
  std::vector<Item> chosen;
  for (const Item& item : known) {
    if (wanted.empty() || std::ranges::find(wanted, name_of(item)) != wanted.end())
      chosen.push_back(item);
  }
  return chosen;
}

}  // namespace

std::string Run::name() const {
  return task + "-" + method + (variant.empty() ? "" : "-" + variant) + "-seed" + std::to_string(seed);
}

std::vector<Run> select_runs(const Experiment& experiment, const Selection& selection) {
  const auto name = [](const auto& item) { return item.name; };
  const auto tasks = choose(experiment.tasks, selection.tasks, name, experiment.task_word, experiment.name);
  auto methods = choose(experiment.methods, selection.methods, name, "method", experiment.name);
  if (selection.methods.empty())
    std::erase_if(methods, &Method::on_request);
  const auto variants = choose(experiment.variants, selection.variants, std::identity(), "variant", experiment.name);
  std::vector<std::int64_t> seeds;  // each once
  for (const std::int64_t seed : selection.seeds.empty() ? experiment.seeds : selection.seeds) {
    if (std::ranges::find(seeds, seed) == seeds.end())
      seeds.push_back(seed);
  }
  std::vector<Run> runs;
  for (const Task& task : tasks)
    for (const Method& method : methods)
      for (const std::string& variant : variants)
        for (const std::int64_t seed : seeds)
          if (auto run = experiment.run(task, method, variant, seed))
            runs.push_back(std::move(*run));
  return runs;
}

const PaperFigure* paper_figure(const Experiment& experiment, std::string_view task, std::string_view method) {
  const auto found = std::ranges::find_if(
      experiment.paper, [&](const PaperFigure& figure) { return figure.task == task && figure.method == method; });
  return found == experiment.paper.end() ? nullptr : &*found;
}

}  // namespace dba::reproduce

#include "cli/reproduce.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bytes/count.h"
#include "bytes/listed.h"
#include "cli/cuda_driver.h"
#include "cli/efficiency.h"
#include "cli/exit_status.h"
#include "cli/machine.h"
#include "cli/number_checks.h"
#include "config/keys.h"
#include "dba/config/config_file.h"
#include "dba/run/signals.h"
#include "dba/train/model.h"
#include "reproduce/experiment.h"
#include "reproduce/result.h"
#include "reproduce/runner.h"
#include "reproduce/shortened.h"
#include "run/folders.h"
#include "run/lock_file.h"

namespace dba::cli {
namespace {

struct ReproduceArguments {
  reproduce::Selection selection;
  reproduce::Places places;
  std::string data, configs, runs, results;
  reproduce::RunnerOptions options;
  std::int64_t threads = -1;
  std::int64_t updates = 0;
  double minutes = 0;
  bool list = false;
  bool table = false;
};

/// The processor and, where there is one, the GPU.
std::vector<std::pair<std::string, std::string>> machine() {
  std::vector<std::pair<std::string, std::string>> parts;
  for (const auto& fact : describe_machine(at::Device(at::kCPU)))
    if (fact.first == "CPU")
      parts.push_back(fact);
  if (const auto driver = ask_cuda_driver(); !driver.devices.empty())
    parts.emplace_back("GPU", driver.devices.front().name);
  return parts;
}

/// configs/NAME of the working folder, of the checkout in whose build folder the program lies, or of the installation.
std::filesystem::path find_configs(const std::string& name) {
  const auto below = std::filesystem::path("configs") / name;
  char program[4096];
  const auto size = ::readlink("/proc/self/exe", program, sizeof program);
  const std::filesystem::path folder =
      std::filesystem::path(std::string(program, static_cast<std::size_t>(std::max<ssize_t>(0, size)))).parent_path();
  for (const auto& root : {std::filesystem::path(), folder.parent_path().parent_path().parent_path(),
                           folder.parent_path() / "share" / "dba"})
    if (run::is_there(root / below))
      return root / below;
  return below;
}

void print_list(const std::vector<reproduce::Run>& runs, const reproduce::Places& places) {
  std::size_t width = 0;
  for (const auto& run : runs)
    width = std::max(width, run.name().size());
  for (const auto& run : runs) {
    const auto result = result_file(run, places);
    const auto state = reproduce::state_of(run, places, result);
    const bool unmade = state == reproduce::State::interrupted || state == reproduce::State::fresh;
    const auto maker = unmade ? run::lock_owner(places.lock(run)) : "";
    std::cout << run.name() << std::string(width + 2 - run.name().size(), ' ')
              << (maker.empty() ? to_string(state) : "at work (" + maker + ")");
    if (result == reproduce::ResultFile::damaged)
      std::cout << " (" << places.result(run).string() << " is damaged)";
    if (state != reproduce::State::finished && !reproduce::report_fault(places.run_folder(run)).empty())
      std::cout << " (" << places.report(run).string() << " is damaged)";
    if (state == reproduce::State::no_data)
      std::cout << " (" << reproduce::missing_data(run, places).front().string() << ")";
    std::cout << "\n";
  }
}

/// A --set that makes no model is told before the first run, and whether the data are there or not. Each configuration
/// is looked at once, whatever the number of its seeds.
void check_overrides(const std::vector<reproduce::Run>& runs, const reproduce::Places& places,
                     const std::vector<std::string>& overrides) {
  std::set<std::pair<std::string, std::vector<std::string>>> checked;  // file, and what the experiment sets above it
  for (const auto& run : runs) {
    const auto state = state_of(run, places);
    if (state == reproduce::State::finished || state == reproduce::State::interrupted)
      continue;  // their settings stay those they began with
    if (!checked.emplace(run.config, run.overrides).second)
      continue;
    try {
      auto config = config::load_config(places.configs / run.config);
      for (const auto* list : {&run.overrides, &overrides})
        for (const auto& assignment : *list)
          config::apply_override(config, assignment);
      train::check_attention(config.model);
    } catch (const c10::Error& error) {
      throw CLI::ValidationError("--set", run.name() + ": " + error.what_without_backtrace());
    } catch (const std::invalid_argument& error) {
      throw CLI::ValidationError("--set", run.name() + ": " + error.what());
    } catch (const std::runtime_error&) {
      // A file that cannot be read is the failure of its own runs, which say so.
    }
  }
}

/// A path without ./ before it and / behind it.
std::string_view bare(std::string_view path) {
  while (path.starts_with("./"))
    path.remove_prefix(2);
  while (path.ends_with('/'))
    path.remove_suffix(1);
  return path;
}

/// Doubts about the table, and what it does without, go to standard error.
reproduce::Page written_page(const reproduce::Experiment& experiment, const reproduce::Places& places) {
  auto page = write_page(experiment, places);
  for (const auto& doubt : page.doubts)
    std::cerr << "warning: " << doubt << "\n";
  for (const auto& fault : page.left_out)
    std::cerr << "left out of the table: " << fault << "\n";
  return page;
}

void run_experiment(const reproduce::Experiment& experiment, ReproduceArguments arguments) {
  auto& options = arguments.options;
  const reproduce::Places places{
      arguments.data,
      arguments.configs.empty() ? find_configs(experiment.name) : std::filesystem::path(arguments.configs),
      arguments.runs, arguments.results};
  if (!arguments.table && !run::is_there(places.configs))
    throw CLI::ValidationError("--configs", "there is no folder " + places.configs.string() +
                                                "; start in the root of the sources, or name the folder");
  std::vector<reproduce::Run> runs;
  try {
    runs = select_runs(experiment, arguments.selection);
  } catch (const std::invalid_argument& error) {
    throw CLI::ValidationError(error.what());
  }
  for (auto& run : runs) {
    if (arguments.updates > 0)
      run = shortened(run, arguments.updates, config::load_config(places.configs / run.config));
  }
  if (!options.overrides.empty() && !arguments.table)
    check_overrides(runs, places, options.overrides);
  if (arguments.list) {
    print_list(runs, places);
    return;
  }
  if (arguments.table) {
    const auto page = written_page(experiment, places);
    std::cout << page.file.string() << "\n";
    if (!page.left_out.empty())
      throw ExitStatus{kFailed};
    return;
  }
  // A run of another recipe would be taken for one of this, from either folder.
  for (const auto& [folder, own] : {std::pair(arguments.results, "results/" + experiment.name),
                                    std::pair(arguments.runs, "runs/" + experiment.name)}) {
    if (!options.overrides.empty() && bare(folder) == own)
      throw CLI::ValidationError("--set", "changes the recipe, and " + folder +
                                              " is for the recipe as it is; name other --runs and --results");
  }
  options.threads = arguments.threads >= 0 ? arguments.threads : options.jobs > 1 ? 1 : 0;
  options.machine = machine();
  options.bfloat16 = options.device != "cpu" && !ask_cuda_driver().devices.empty();
  options.seconds = 60 * arguments.minutes;
  const auto outcome = make_missing(experiment, runs, places, options);
  const auto page = written_page(experiment, places);
  for (const auto& failure : outcome.failures)
    std::cerr << "failed: " << failure << "\n";
  if (outcome.signal != 0) {
    std::cerr << "stopped by a signal; the same command goes on\n";
    throw ExitStatus{run::StopSignals::exit_code(outcome.signal)};
  }
  std::cout << outcome.finished << " of " << bytes::counted(runs.size(), "run") << " finished";
  if (outcome.without_data > 0)
    std::cout << ", " << outcome.without_data << " without data";
  std::cout << "; the table is " << page.file.string() << "\n";
  if (!outcome.elsewhere.empty())
    std::cerr << "another dba reproduce is making " << bytes::listed(outcome.elsewhere) << " in "
              << places.runs.string()
              << "; wait for its end and give the same command again, or name other --runs and --results\n";
  if (outcome.unfinished > 0 && outcome.failures.empty()) {
    std::cout << "the time is over; the same command goes on with " << bytes::counted(outcome.unfinished, "run")
              << "\n";
    throw ExitStatus{run::kTimeIsOver};
  }
  // Data that were asked for by name, and a call that could do nothing, are failures.
  const bool asked_for = outcome.without_data > 0 && (!arguments.selection.tasks.empty() || outcome.finished == 0);
  if (!outcome.failures.empty() || !outcome.elsewhere.empty() || asked_for)
    throw ExitStatus{kFailed};
}

void add_training_experiment(CLI::App& reproduce, const reproduce::Experiment& experiment) {
  auto* command = reproduce.add_subcommand(experiment.name, experiment.title);
  const auto first_task = experiment.tasks.front().name;
  command->footer("Examples:\n  dba reproduce " + experiment.name +
                  " --list                     the runs and how each stands\n  dba reproduce " + experiment.name +
                  " --jobs 16                  make what is missing, 16 at a time, one thread each\n  dba reproduce " +
                  experiment.name + " --tasks " + first_task + " --seeds 1\n  dba reproduce " + experiment.name +
                  " --table                    only the table, from the results there are\n"
                  "Runs that were interrupted go on where they stopped; a failed one does not stop the others.\n"
                  "A damaged result or report is told by name, and its run is made again where need be.\n"
                  "Exit status: 0 done, 1 a run failed, was left to another process or lacks its data, 2 wrong usage,\n"
                  "3 the time of --minutes is over, 130 or 143 stopped.");
  auto arguments = std::make_shared<ReproduceArguments>();
  arguments->data = experiment.data_folder;
  arguments->runs = "runs/" + experiment.name;
  arguments->results = "results/" + experiment.name;
  const auto list = [&](const std::string& name, auto& values, const std::string& text) {
    return command->add_option(name, values, text)->delimiter(',')->allow_extra_args(true);
  };
  list("--tasks,--sets", arguments->selection.tasks, "only these; separated by commas or spaces");
  list("--methods", arguments->selection.methods, "only these");
  list("--seeds", arguments->selection.seeds, "these, not the default ones")->check(kNotNegative);
  if (experiment.variants.size() > 1)
    list("--variants", arguments->selection.variants, "only these");
  command->add_option("--data", arguments->data, "folder of the data: " + experiment.data_help)->capture_default_str();
  command->add_option("--configs", arguments->configs,
                      "folder of the configurations (default configs/" + experiment.name + ")");
  command->add_option("--runs", arguments->runs, "folder for the runs and what they print")->capture_default_str();
  command->add_option("--results", arguments->results, "folder for the results and their table")->capture_default_str();
  command
      ->add_option("--jobs", arguments->options.jobs,
                   "processes at a time; with more runs than that, each makes several seeds of one configuration")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--threads", arguments->threads,
                   "CPU threads of each run; 0: as its configuration says (default 1 with several jobs, else 0)")
      ->check(CLI::Range(0, 4096));
  command
      ->add_option("--device", arguments->options.device, "auto, cpu or cuda, instead of what the configuration says")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command
      ->add_option(
          "--set", arguments->options.overrides,
          "a.b=value for all runs, to try something out; may be repeated; name other --runs and --results with it, "
          "where rows of the table name what was set")
      ->allow_extra_args(false);
  command
      ->add_option("--updates", arguments->updates,
                   "shortened runs of so many updates, to try the chain; they have results and tables of their own")
      ->check(kPositive);
  command->add_option("--minutes", arguments->minutes, "then save and stop; the same command goes on")
      ->check(kPositive);
  auto* only_list = command->add_flag("--list", arguments->list, "show the runs and how each stands, and make nothing");
  command->add_flag("--table", arguments->table, "only write the table from the results there are")
      ->excludes(only_list);
  command->add_flag("--quiet", arguments->options.quiet, "say nothing but errors and the end");
  command->callback([&experiment, arguments] { run_experiment(experiment, *arguments); });
}

}  // namespace

void add_reproduce(CLI::App& app) {
  auto* reproduce = app.add_subcommand("reproduce", "Run an experiment of the paper and set its numbers beside ours");
  reproduce->footer(
      "Examples:\n"
      "  dba reproduce lra --tasks image --methods dba,softmax --seeds 1\n"
      "  dba reproduce uea --list\n"
      "  dba reproduce uea --sets JapaneseVowels --methods dba_released,softmax --jobs 4");
  for (const auto& experiment : reproduce::experiments())
    add_training_experiment(*reproduce, experiment);
  add_efficiency(*reproduce);
  // An unknown name is left over; CLI11 alone would not say what was meant.
  reproduce->allow_extras();
  reproduce->callback([reproduce] {
    if (!reproduce->get_subcommands().empty()) {
      if (const auto rest = reproduce->remaining(); !rest.empty())
        throw CLI::ExtrasError(rest);
      return;
    }
    std::vector<std::string> names;
    for (const auto* subcommand : reproduce->get_subcommands([](const CLI::App*) { return true; }))
      names.push_back(subcommand->get_name());
    if (reproduce->remaining().empty())
      throw CLI::ValidationError("reproduce", "name an experiment: " + bytes::listed(names));
    const std::string name = reproduce->remaining().front();
    throw CLI::ValidationError(
        "reproduce", "there is no experiment \"" + name + "\"; did you mean " + config::nearest_of(name, names) + "?");
  });
}

}  // namespace dba::cli

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dba::reproduce {

// A training experiment of the paper is data: the tasks and methods of its table, the settings of every run, the
// paper's own numbers and the sections of the page that sets ours beside them. To add one, write a file like uea.cc
// that returns an Experiment, declare it below and name it in registry.cc; `dba reproduce NAME`, with --list, --table,
// --jobs and all else, then exists. The runs themselves are made by `dba train`, so whatever an experiment needs must
// be sayable in a configuration file and `--set`.

/// A row of the table.
struct Task {
  std::string name;  ///< as in --tasks and in the paper's figures
  std::string title;
  bool other_data = false;  ///< a row for a stand-in, which no mean counts
};

/// A column of the table.
struct Method {
  std::string name;  ///< as in --methods
  std::string title;
  std::string paper;        ///< the paper's column it is set beside, a PaperFigure::method; empty: the paper has none
  bool on_request = false;  ///< made only where --methods names it
};

/// An override of runs whose test set is evaluated beside the validation data, for a second number.
inline constexpr std::string_view kWatchTest = "train.watch_test=true";

/// One training run.
struct Run {
  std::string task, method;
  std::string variant;  ///< one of Experiment::variants; "" where there is but one
  std::int64_t seed = 1;
  std::string config;                  ///< a file below configs/<experiment>/
  std::vector<std::string> overrides;  ///< as for --set, above what the file says
  /// Configuration key, and the file or folder below the data folder; where several layouts are known, all of them with
  /// | between, and the first that is there is taken. A ready cache (`dba data cache`) goes before them:
  /// task/train.cache.
  std::vector<std::pair<std::string, std::string>> data;

  /// task-method[-variant]-seedN: its folder below runs/<experiment> and its file in results/<experiment>.
  std::string name() const;
};

/// An accuracy that the paper prints, in percent.
struct PaperFigure {
  std::string task, method;
  double accuracy = 0;
  std::optional<double> deviation;
};

/// A table of the page: the results of one variant under one protocol.
struct Section {
  std::string variant;
  std::string protocol;  ///< `honest`, `last_epoch` or `as_published`: a key of report.json's "protocols"
  std::string heading;
  std::string text;           ///< how the number came about, in a sentence or two
  bool beside_paper = false;  ///< whether the paper's figures, made under the same protocol, stand beside ours
};

struct Experiment {
  std::string name;         ///< as in `dba reproduce NAME`; its configurations lie in configs/NAME
  std::string title;        ///< heading of the page
  std::string description;  ///< first paragraph of the page; says where the paper's figures stand
  std::string data_folder;  ///< default of --data
  std::string data_help;    ///< what is expected there, and how to get it
  std::string task_word;    ///< what a task is called in the table: "set", "task"
  std::vector<Task> tasks;
  std::vector<Method> methods;
  std::vector<std::string> variants = {""};
  std::vector<std::int64_t> seeds = {1, 2, 3, 4, 5};
  std::vector<PaperFigure> paper;
  std::vector<Section> sections;
  int decimals = 1;  ///< of the percentages, as in the paper
  /// Where runs of a task can have been trained on other data than the paper's, what those are; empty: the paper's.
  /// Such results make rows of their own, with no figure of the paper beside them. Unset: nobody asks.
  std::function<std::string(const std::string& task, std::int64_t training_examples)> other_data;
  /// The run of a cell; nothing where the experiment has none.
  std::function<std::optional<Run>(const Task&, const Method&, const std::string& variant, std::int64_t seed)> run;
};

/// Parts of an experiment; an empty list means all of it, less the methods on request.
struct Selection {
  std::vector<std::string> tasks, methods, variants;
  std::vector<std::int64_t> seeds;
};

/// The runs of the parts, task by task. An unknown name: std::invalid_argument, which tells the nearest known one.
std::vector<Run> select_runs(const Experiment& experiment, const Selection& selection);

/// The paper's figure for a cell, if it prints one.
const PaperFigure* paper_figure(const Experiment& experiment, std::string_view task, std::string_view method);

Experiment lra();
Experiment uea();

/// All training experiments.
std::span<const Experiment> experiments();

}  // namespace dba::reproduce

#include "cli/generate.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "bytes/count.h"
#include "cli/exit_status.h"
#include "cli/number_checks.h"
#include "dba/data/listops.h"
#include "dba/data/pathfinder.h"
#include "dba/run/progress.h"
#include "dba/run/signals.h"

namespace dba::cli {
namespace {

struct ListOpsArguments {
  std::filesystem::path folder;
  data::ListOpsOptions options;
  bool quiet = false;
};

struct PathfinderArguments {
  std::filesystem::path out;
  data::PathfinderOptions options;
  std::string difficulty = "hard";
  std::string layout = "records";
  std::filesystem::path sheet;
  bool quiet = false;
};

/// Shows how far a generator is. Where a signal asks to stop it ends it, so that no half-written file stays.
class Watch {
 public:
  /// left: what is said of what stays after a stop.
  Watch(std::size_t total, bool quiet, std::string left)
      : progress_(0, static_cast<std::int64_t>(total), look(quiet)), left_(std::move(left)) {}

  void operator()(std::size_t done, std::size_t) {
    progress_.update(static_cast<std::int64_t>(done));
    if (const int signal = run::StopSignals::received(); signal != 0) {
      progress_.finish();
      std::cerr << "dba generate: stopped by a signal; " << left_ << "\n";
      throw ExitStatus{run::StopSignals::exit_code(signal)};
    }
  }
  void finish() {
    progress_.finish();
  }

 private:
  static run::Progress::Options look(bool quiet) {
    run::Progress::Options options;
    options.quiet = quiet;
    return options;
  }
  const run::StopSignals signals_;
  run::Progress progress_;
  const std::string left_;
};

void generate(const ListOpsArguments& arguments) {
  std::filesystem::create_directories(arguments.folder);
  const auto& options = arguments.options;
  Watch watch(options.train + options.validation + options.test, arguments.quiet,
              "files that were not whole yet are not in " + arguments.folder.string());
  data::generate_listops(arguments.folder, options, std::ref(watch));
  watch.finish();
  if (!arguments.quiet) {
    std::cout << "wrote basic_train.tsv, basic_val.tsv and basic_test.tsv into " << arguments.folder.string() << "\n";
  }
}

void generate(const PathfinderArguments& arguments) {
  const bool records = arguments.layout == "records";
  auto where = arguments.out;
  if (records && where.extension() != ".bin") {
    where += ".bin";
  }
  if (const auto folder = records ? where.parent_path() : where; !folder.empty()) {
    std::filesystem::create_directories(folder);
  }
  auto options = arguments.options;
  options.contour_length = arguments.difficulty == "hard" ? 14 : arguments.difficulty == "intermediate" ? 9 : 6;
  if (!arguments.sheet.empty()) {
    data::write_pathfinder_sheet(arguments.sheet, options);
  }
  Watch watch(options.count, arguments.quiet,
              records ? "there is no " + where.string()
                      : where.string() + " holds a part of the pictures; remove it before you draw them again");
  if (records) {
    data::write_pathfinder_records(where, options, std::ref(watch));
  } else {
    data::write_pathfinder_folder(where, options, std::ref(watch));
  }
  watch.finish();
  if (!arguments.quiet) {
    const auto name = where.string();
    std::cout << "wrote " << bytes::counted(options.count, "picture") << " to " << name << "; train on " << name
              << "@0-80%, choose on " << name << "@80-90%, test on " << name << "@90-100%\n";
  }
}

void add_pathfinder(CLI::App& command) {
  auto* pathfinder = command.add_subcommand(
      "pathfinder", "Pictures of 32 × 32 with two dashed contours: are the two discs on the same one?");
  pathfinder->footer(
      "Examples:\n"
      "  dba generate pathfinder --out data/pathfinder32\n"
      "  dba generate pathfinder --out data/small --count 2000 --difficulty easy --sheet sheet.png\n"
      "  dba generate pathfinder --out data/pathfinder32 --layout folders\n"
      "Records are a label byte and 1,024 grey bytes each, in one file OUT.bin; folders are OUT/imgs/N/sample_K.png\n"
      "and OUT/metadata/N.npy, as in Long-Range Arena's release. Training takes the first 80 % of the pictures, the\n"
      "choice of the model the next 10 %, the test the last. The same seed gives the same pictures, whatever the\n"
      "number of threads.");
  auto arguments = std::make_shared<PathfinderArguments>();
  auto& options = arguments->options;
  pathfinder->add_option("--out", arguments->out, "file of the records, or folder")->required();
  pathfinder->add_option("--count", options.count, "pictures")->check(kNotNegative)->capture_default_str();
  pathfinder->add_option("--seed", options.seed, "seed")->check(kNotNegative)->capture_default_str();
  pathfinder->add_option("--difficulty", arguments->difficulty, "contours of 14, 9 or 6 dashes")
      ->check(CLI::IsMember({"hard", "intermediate", "easy"}))
      ->capture_default_str();
  pathfinder->add_option("--layout", arguments->layout, "one file of records, or folders of PNG images")
      ->check(CLI::IsMember({"records", "folders"}))
      ->capture_default_str();
  pathfinder->add_option("--sheet", arguments->sheet, "a PNG file that shows the first 96; a white frame is label 1");
  pathfinder->add_option("--threads", options.threads, "0: one per processor")
      ->check(kNotNegative)
      ->capture_default_str();
  pathfinder->add_flag("--quiet", arguments->quiet, "say nothing");
  pathfinder->callback([arguments] { generate(*arguments); });
}

}  // namespace

void add_generate(CLI::App& app) {
  auto* command = app.add_subcommand("generate", "Make a data set on the spot");
  command->require_subcommand(1);
  add_pathfinder(*command);
  auto* listops = command->add_subcommand("listops", "Nested list operations, as in Long-Range Arena");
  listops->footer(
      "Examples:\n"
      "  dba generate listops --out data/listops\n"
      "  dba generate listops --out data/short --min-length 10 --max-length 60 --max-depth 3 --max-args 4 \\\n"
      "      --train 20000 --validation 1000 --test 1000\n"
      "The same seed gives the same files, whatever the number of threads.");
  auto arguments = std::make_shared<ListOpsArguments>();
  auto& options = arguments->options;
  listops->add_option("--out", arguments->folder, "folder for the three files")->required();
  listops->add_option("--seed", options.seed, "seed")->check(kNotNegative)->capture_default_str();
  listops->add_option("--train", options.train, "expressions to train on")->check(kNotNegative)->capture_default_str();
  listops->add_option("--validation", options.validation, "expressions to choose the model on")
      ->check(kNotNegative)
      ->capture_default_str();
  listops->add_option("--test", options.test, "expressions to test on")->check(kNotNegative)->capture_default_str();
  listops->add_option("--min-length", options.min_length, "expressions are longer than this")->capture_default_str();
  listops->add_option("--max-length", options.max_length, "expressions are shorter than this")->capture_default_str();
  listops->add_option("--max-depth", options.max_depth, "greatest depth")->capture_default_str();
  listops->add_option("--max-args", options.max_args, "most arguments of an operator")->capture_default_str();
  listops->add_option("--threads", options.threads, "0: one per processor")->check(kNotNegative)->capture_default_str();
  listops->add_flag("--quiet", arguments->quiet, "say nothing");
  listops->callback([arguments] { generate(*arguments); });
}

}  // namespace dba::cli

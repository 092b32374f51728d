#include "cli/generate.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "dba/data/listops.h"
#include "dba/run/progress.h"

namespace dba::cli {
namespace {

struct Arguments {
  std::filesystem::path folder;
  data::ListOpsOptions options;
  bool quiet = false;
};

void generate(const Arguments& arguments) {
  std::filesystem::create_directories(arguments.folder);
  const auto& options = arguments.options;
  run::Progress::Options look;
  look.quiet = arguments.quiet;
  run::Progress progress(0, static_cast<std::int64_t>(options.train + options.validation + options.test), look);
  data::generate_listops(arguments.folder, options,
                         [&](std::size_t done, std::size_t) { progress.update(static_cast<std::int64_t>(done)); });
  progress.finish();
  if (!arguments.quiet) {
    std::cout << "wrote basic_train.tsv, basic_val.tsv and basic_test.tsv into " << arguments.folder.string() << "\n";
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  auto* command = app.add_subcommand("generate", "Make a data set on the spot");
  command->require_subcommand(1);
  auto* listops = command->add_subcommand("listops", "Nested list operations, as in Long-Range Arena");
  listops->footer(
      "Examples:\n"
      "  dba generate listops --out data/listops\n"
      "  dba generate listops --out data/short --min-length 10 --max-length 60 --max-depth 3 --max-args 4 \\\n"
      "      --train 20000 --validation 1000 --test 1000\n"
      "The same seed gives the same files, whatever the number of threads.");
  auto arguments = std::make_shared<Arguments>();
  auto& options = arguments->options;
  listops->add_option("--out", arguments->folder, "folder for the three files")->required();
  listops->add_option("--seed", options.seed, "seed")->capture_default_str();
  listops->add_option("--train", options.train, "expressions to train on")->capture_default_str();
  listops->add_option("--validation", options.validation, "expressions to choose the model on")->capture_default_str();
  listops->add_option("--test", options.test, "expressions to test on")->capture_default_str();
  listops->add_option("--min-length", options.min_length, "expressions are longer than this")->capture_default_str();
  listops->add_option("--max-length", options.max_length, "expressions are shorter than this")->capture_default_str();
  listops->add_option("--max-depth", options.max_depth, "greatest depth")->capture_default_str();
  listops->add_option("--max-args", options.max_args, "most arguments of an operator")->capture_default_str();
  listops->add_option("--threads", options.threads, "0: one per processor")->capture_default_str();
  listops->add_flag("--quiet", arguments->quiet, "say nothing");
  listops->callback([arguments] { generate(*arguments); });
}

}  // namespace dba::cli

#include "cli/data.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/exit_status.h"
#include "dba/data/describe.h"

namespace dba::cli {
namespace {

struct Arguments {
  std::filesystem::path path;
  data::ReaderOptions options;
  bool json = false;
};

}  // namespace

void add_data(CLI::App& app) {
  auto* command = app.add_subcommand("data", "Look at data");
  command->require_subcommand(1);
  auto* check = command->add_subcommand("check", "Say what a file or folder holds and what is missing");
  check->footer(
      "Examples:\n"
      "  dba data check data/listops\n"
      "  dba data check reviews.jsonl --json\n"
      "  dba data check table.csv --text review --label stars\n"
      "Exit status: 0 sound, 1 something is wrong with it, 2 wrong usage.");
  auto arguments = std::make_shared<Arguments>();
  arguments->options.labels = data::LabelUse::optional;
  check->add_option("path", arguments->path, "file or folder")->required();
  check->add_option("--format", arguments->options.format, "format, where the extension does not tell");
  check->add_option("--text", arguments->options.text, "column or key of the text")->capture_default_str();
  check->add_option("--label", arguments->options.label, "column or key of the label")->capture_default_str();
  check->add_flag("--json", arguments->json, "for programs");
  check->callback([arguments] {
    const auto description = data::describe_folder(arguments->path, arguments->options);
    std::cout << (arguments->json ? description.to_json() + "\n" : description.to_text());
    if (!description.sound()) {
      throw ExitStatus{kFailed};
    }
  });
}

}  // namespace dba::cli

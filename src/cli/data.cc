#include "cli/data.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "bytes/count.h"
#include "cli/exit_status.h"
#include "dba/config/config_file.h"
#include "dba/data/describe.h"
#include "dba/data/lra.h"
#include "dba/train/caches.h"

namespace dba::cli {
namespace {

struct CheckArguments {
  std::filesystem::path path;
  data::ReaderOptions options;
  bool json = false;
};

struct CacheArguments {
  std::filesystem::path config;
  std::filesystem::path out;
  std::vector<std::string> overrides;
};

config::TrainConfig configuration(const CacheArguments& arguments) {
  auto config = config::load_config(arguments.config);
  for (const auto& assignment : arguments.overrides) {
    config::apply_override(config, assignment);
  }
  return config;
}

data::Description describe_configured(const std::filesystem::path& file) {
  const auto data = config::load_config(file).data;
  data::ReaderOptions options;
  options.labels = data::LabelUse::optional;
  options.format = data.format == "auto" ? "" : data.format;
  options.text = data.text_column;
  options.label = data.label_column;
  options.case_column = data.case_column;
  options.time_column = data.time_column;
  if (!data.second_text_column.empty()) {
    options.text1 = data.text_column;
    options.text2 = data.second_text_column;
  }
  return data::describe_parts(file, {{"train", data.train}, {"validation", data.validation}, {"test", data.test}},
                              options);
}

template <class Report>
void print(const Report& report, bool json) {
  std::cout << (json ? report.to_json() + "\n" : report.to_text());
  if (!report.sound()) {
    throw ExitStatus{kFailed};
  }
}

void check(const CheckArguments& arguments) {
  const auto extension = arguments.path.extension();
  if (extension == ".yaml" || extension == ".yml") {
    print(describe_configured(arguments.path), arguments.json);
  } else if (data::holds_lra(arguments.path)) {
    print(data::check_lra(arguments.path), arguments.json);
  } else {
    print(data::describe_folder(arguments.path, arguments.options), arguments.json);
  }
}

void cache(const CacheArguments& arguments) {
  const auto config = configuration(arguments);
  config::check_config(config, arguments.config.string());
  std::filesystem::create_directories(arguments.out);
  const auto written =
      train::write_caches(config, arguments.out, [](const std::string& text) { std::cout << text << "\n"; });
  std::string use;
  for (const auto& cache : written) {
    const auto kibibytes = static_cast<double>(std::filesystem::file_size(cache.file)) / 1024;
    std::cout << cache.file.string() << ": " << bytes::counted(cache.examples, "example") << ", " << std::fixed
              << std::setprecision(1) << (kibibytes < 1024 ? kibibytes : kibibytes / 1024)
              << (kibibytes < 1024 ? " KiB\n" : " MiB\n");
    use += " --set " + cache.key + "=" + cache.file.string();
  }
  std::cout << "train on them with" << use << "\n";
}

void add_check(CLI::App& command) {
  auto* subcommand =
      command.add_subcommand("check", "Say what a file, a folder or a configuration's data hold and what is missing");
  subcommand->footer(
      "Examples:\n"
      "  dba data check data/lra\n"
      "  dba data check configs/lra/image_dba.yaml\n"
      "  dba data check data/listops\n"
      "  dba data check reviews.jsonl --json\n"
      "  dba data check table.csv --text review --label stars\n"
      "  dba data check data/lra/pathfinder32.bin@90-100%\n"
      "A folder that holds tasks of Long-Range Arena, in folders of their own or as cifar10_gray_train.bin,\n"
      "cifar10_gray_test.bin or pathfinder32.bin, is reported by task, with the counts that were published\n"
      "beside those found, and with its caches (TASK/train.cache), which runs take\n"
      "first. The data digest of a cache is the one that reports and results of runs hold; other digests are\n"
      "those of sha256sum, that of a folder the one of\n"
      "  find . -type f -not -path '*/.*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum\n"
      "Exit status: 0 sound, 1 something is wrong with it, 2 wrong usage.");
  auto arguments = std::make_shared<CheckArguments>();
  arguments->options.labels = data::LabelUse::optional;
  subcommand->add_option("path", arguments->path, "file, folder or configuration (.yaml)")->required();
  subcommand->add_option("--format", arguments->options.format, "format, where the extension does not tell");
  subcommand->add_option("--text", arguments->options.text, "column or key of the text")->capture_default_str();
  subcommand->add_option("--label", arguments->options.label, "column or key of the label")->capture_default_str();
  subcommand->add_option("--case", arguments->options.case_column, "column of the series' number in csv_long")
      ->capture_default_str();
  subcommand->add_option("--time", arguments->options.time_column, "column of the time in csv_long")
      ->capture_default_str();
  subcommand->add_flag("--json", arguments->json, "for programs");
  subcommand->callback([arguments] { check(*arguments); });
}

void add_cache(CLI::App& command) {
  auto* subcommand =
      command.add_subcommand("cache", "Make the data of a configuration ready, for a machine without the sources");
  subcommand->footer(
      "Examples:\n"
      "  dba data cache configs/lra/image_dba.yaml --out data/lra/image\n"
      "  dba train --config configs/lra/image_dba.yaml --run runs/image \\\n"
      "      --set data.train=data/lra/image/train.cache --set data.validation=data/lra/image/validation.cache \\\n"
      "      --set data.test=data/lra/image/test.cache\n"
      "A byte of text or a pixel takes a byte in it. Tokeniser, lengths and parts are fixed by the configuration.");
  auto arguments = std::make_shared<CacheArguments>();
  subcommand->add_option("config", arguments->config, "configuration (.yaml)")->required();
  subcommand->add_option("--out", arguments->out, "folder for train.cache, validation.cache and test.cache")
      ->required();
  subcommand->add_option("--set", arguments->overrides, "override one key, as in data.max_length=1000");
  subcommand->callback([arguments] { cache(*arguments); });
}

}  // namespace

void add_data(CLI::App& app) {
  auto* command = app.add_subcommand("data", "Look at data, make them ready");
  command->require_subcommand(1);
  add_check(*command);
  add_cache(*command);
}

}  // namespace dba::cli

#include "cli/train.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/build.h"
#include "cli/exit_status.h"
#include "cli/learning_curve.h"
#include "dba/config/config_file.h"
#include "dba/run/run_folder.h"
#include "dba/run/signals.h"
#include "dba/train/trainer.h"

namespace dba::cli {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string run;
  std::string resume;
  std::string init_from;
  bool new_head = false;
  bool print_config = false;
  bool quiet = false;
  bool json = false;
};

void print_result(const std::string& report_text, const std::filesystem::path& folder) {
  const auto report = nlohmann::json::parse(report_text);
  const auto line = [&](const char* part) {
    const auto& metrics = report.at(part);
    std::printf("%-11s accuracy %.4f, macro-F1 %.4f, loss %.4f over %lld examples\n", part,
                metrics.at("accuracy").get<double>(), metrics.at("macro_f1").get<double>(),
                metrics.at("loss").get<double>(), static_cast<long long>(metrics.at("examples").get<std::int64_t>()));
  };
  std::printf("model of update %lld, chosen on %s (protocol %s)\n",
              static_cast<long long>(report.at("best_update").get<std::int64_t>()),
              report.at("model_chosen_on").get<std::string>().c_str(),
              report.at("protocol").get<std::string>().c_str());
  line("validation");
  if (report.contains("test")) {
    line("test");
  }
  std::printf("%.0f seconds, %.2f %% of them waiting for data\n", report.at("seconds").get<double>(),
              100 * report.at("share_of_time_waiting_for_data").get<double>());
  std::fputs(draw_learning_curve(folder / "metrics.jsonl").c_str(), stdout);
  std::printf("everything is in %s\n", folder.string().c_str());
}

void train(const Arguments& arguments) {
  const bool resume = !arguments.resume.empty();
  if (resume && (!arguments.config.empty() || !arguments.overrides.empty() || !arguments.run.empty() ||
                 !arguments.init_from.empty() || arguments.new_head)) {
    throw CLI::ValidationError("--resume",
                               "takes its configuration from the run's folder; leave out --config, --set, "
                               "--run, --init-from and --new-head");
  }
  const auto source = resume ? (std::filesystem::path(arguments.resume) / "config.yaml").string() : arguments.config;
  auto config = source.empty() ? config::TrainConfig() : config::load_config(source);
  try {
    for (const auto& assignment : arguments.overrides) {
      config::apply_override(config, assignment);
    }
  } catch (const std::invalid_argument& error) {
    throw CLI::ValidationError(error.what());
  }
  if (!arguments.init_from.empty()) {
    config.train.init_from = arguments.init_from;
  }
  config.train.new_head = config.train.new_head || arguments.new_head;
  if (arguments.print_config) {
    std::cout << config::to_yaml(config, config::Comments::documented);
    return;
  }
  config::check_config(config, source.empty() ? "the settings" : source);
  if (!resume && arguments.run.empty()) {
    throw CLI::RequiredError("--run");
  }
  auto folder = resume ? run::RunFolder::resume(arguments.resume) : run::RunFolder::create(arguments.run);
  train::TrainOptions options;
  options.resume = resume;
  options.progress.quiet = arguments.quiet;
  options.version = build().version;
  options.commit = build().commit;
  const auto result = train::train(config, folder, options);
  if (result.signal != 0) {
    throw ExitStatus{run::StopSignals::exit_code(result.signal)};
  }
  if (arguments.json) {
    std::cout << result.report;
  } else if (!arguments.quiet) {
    print_result(result.report, folder.path());
  }
}

}  // namespace

void add_train(CLI::App& app) {
  auto* command = app.add_subcommand("train", "Train a classifier of sequences");
  command->footer(
      "Examples:\n"
      "  dba train --config configs/quickstart.yaml --run runs/first\n"
      "  dba train --run runs/reviews --set data.train=reviews.jsonl --set train.epochs=3\n"
      "  dba train --resume runs/first          go on after a stop, bit by bit as if there had been none\n"
      "  dba train --config mine.yaml --run runs/tuned --init-from runs/first --new-head\n"
      "  dba train --print-config               every key, its meaning and its default\n"
      "SIGINT and SIGTERM finish the update, save and end with status 130 and 143.\n"
      "Exit status: 0 done, 1 failed, 2 wrong usage.");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("--config", arguments->config, "YAML file; keys that it leaves out keep their defaults");
  command->add_option("--set", arguments->overrides, "a.b=value, over what the file says; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--run", arguments->run, "new folder for all that the run writes");
  command->add_option("--resume", arguments->resume, "folder of a run that stopped");
  command->add_option("--init-from", arguments->init_from, "a trained run or model whose weights are the first ones");
  command->add_flag("--new-head", arguments->new_head, "with --init-from: learn a new head, for other classes");
  command->add_flag("--print-config", arguments->print_config, "show the configuration and do nothing");
  command->add_flag("--quiet", arguments->quiet, "say nothing but errors");
  command->add_flag("--json", arguments->json, "print the report as JSON");
  command->callback([arguments] { train(*arguments); });
}

}  // namespace dba::cli

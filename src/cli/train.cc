#include "cli/train.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bytes/count.h"
#include "cli/build.h"
#include "cli/exit_status.h"
#include "cli/learning_curve.h"
#include "cli/number_checks.h"
#include "cli/seed_summary.h"
#include "dba/config/config_file.h"
#include "dba/run/run_folder.h"
#include "dba/run/signals.h"
#include "dba/train/trainer.h"

namespace dba::cli {
namespace {

/// Where neither a file nor --set says how long to train.
constexpr std::int64_t kEpochsOfOwnData = 100;

struct TrainArguments {
  std::filesystem::path data;
  std::string config;
  std::vector<std::string> overrides;
  std::string run;
  std::vector<std::int64_t> seeds;
  std::string resume;
  std::string init_from;
  bool new_head = false;
  double minutes = 0;
  std::int64_t profile = 0;
  bool print_config = false;
  bool quiet = false;
  bool json = false;
};

void print_result(const std::string& report_text, const std::filesystem::path& folder) {
  const auto report = nlohmann::json::parse(report_text);
  const auto line = [&](const char* part) {
    const auto& metrics = report.at(part);
    std::printf("%-11s accuracy %.4f, macro-F1 %.4f, loss %.4f over %s\n", part, metrics.at("accuracy").get<double>(),
                metrics.at("macro_f1").get<double>(), metrics.at("loss").get<double>(),
                bytes::counted(metrics.at("examples").get<std::int64_t>(), "example").c_str());
  };
  std::printf("model of update %lld, chosen on %s (protocol %s)\n",
              static_cast<long long>(report.at("best_update").get<std::int64_t>()),
              report.at("model_chosen_on").get<std::string>().c_str(),
              report.at("protocol").get<std::string>().c_str());
  for (const char* part : {"validation", "test"}) {
    if (report.contains(part)) {
      line(part);
    }
  }
  if (const auto protocols = report.value("protocols", nlohmann::json::object()); protocols.size() > 1) {
    std::puts("test accuracy of this run under each protocol:");
    for (const auto& [protocol, metrics] : protocols.items()) {
      std::printf("  %-13s %.4f (update %lld)\n", protocol.c_str(), metrics.at("accuracy").get<double>(),
                  static_cast<long long>(metrics.at("update").get<std::int64_t>()));
    }
  }
  const auto share = [&](const char* part) { return 100 * report.at("share_of_time").at(part).get<double>(); };
  std::printf(
      "%.0f s, %.2f ms an update (%s from graphs); %.1f %% updates, %.1f %% waiting for data, "
      "%.1f %% evaluations, %.1f %% checkpoints\n",
      report.at("seconds").get<double>(), 1e3 * report.at("seconds_per_update").get<double>(),
      bytes::counted(report.at("updates_from_graphs").get<std::int64_t>(), "update").c_str(), share("updates"),
      share("data"), share("evaluations"), share("checkpoints"));
  std::fputs(draw_learning_curve(folder / "metrics.jsonl").c_str(), stdout);
  std::printf("everything is in %s\n", folder.string().c_str());
}

/// Returns report.json.
std::string make_run(const config::TrainConfig& config, run::RunFolder folder, const train::TrainOptions& options,
                     const TrainArguments& arguments) {
  const auto result = train::train(config, folder, options);
  if (result.signal != 0) {
    throw ExitStatus{run::StopSignals::exit_code(result.signal)};
  }
  if (result.out_of_time) {
    throw ExitStatus{run::kTimeIsOver};
  }
  if (arguments.json) {
    std::cout << result.report;
  } else if (!arguments.quiet) {
    print_result(result.report, folder.path());
  }
  return result.report;
}

/// One run for each seed, in folders of their own beside each other.
void make_runs(config::TrainConfig config, train::TrainOptions options, const TrainArguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  SeedSummary summary;
  for (const auto seed : arguments.seeds) {
    config.seed = seed;
    if (arguments.minutes > 0) {
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
      options.seconds = std::max(60 * arguments.minutes - passed.count(), 1e-3);
    }
    auto folder = run::RunFolder::create(arguments.run + "-seed" + std::to_string(seed));
    summary.add(make_run(config, std::move(folder), options, arguments));
  }
  if (!arguments.json && !arguments.quiet) {
    std::cout << summary.text() << std::flush;
  }
}

void train(const TrainArguments& arguments) {
  const bool resume = !arguments.resume.empty();
  if (resume &&
      (!arguments.data.empty() || !arguments.config.empty() || !arguments.overrides.empty() || !arguments.run.empty() ||
       !arguments.init_from.empty() || arguments.new_head || !arguments.seeds.empty())) {
    throw CLI::ValidationError(
        "--resume",
        "takes its configuration from the run's folder; leave out the training file, --config, --set, "
        "--run, --seeds, --init-from and --new-head");
  }
  if (const auto extension = arguments.data.extension(); extension == ".yaml" || extension == ".yml") {
    throw CLI::ValidationError("data", arguments.data.string() + " is a configuration; name it with --config");
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
  if (!arguments.data.empty()) {
    config.data.train = arguments.data.string();
  }
  if (!arguments.init_from.empty()) {
    config.train.init_from = arguments.init_from;
  }
  config.train.new_head = config.train.new_head || arguments.new_head;
  if (arguments.print_config) {
    std::cout << config::to_yaml(config, config::Comments::documented);
    return;
  }
  if (source.empty() && config.train.updates == 0 && config.train.epochs == 0) {
    config.train.epochs = kEpochsOfOwnData;
  }
  config::check_config(config, source.empty() ? "the settings" : source);
  if (!resume && arguments.run.empty()) {
    throw CLI::RequiredError("--run");
  }
  train::TrainOptions options;
  options.resume = resume;
  options.seconds = 60 * arguments.minutes;
  options.profile = arguments.profile;
  options.progress.quiet = arguments.quiet;
  options.version = build().version;
  options.commit = build().commit;
  if (!arguments.seeds.empty()) {
    return make_runs(config, options, arguments);
  }
  auto folder = resume ? run::RunFolder::resume(arguments.resume) : run::RunFolder::create(arguments.run);
  make_run(config, std::move(folder), options, arguments);
}

}  // namespace

void add_train(CLI::App& app) {
  auto* command = app.add_subcommand("train", "Train a classifier of sequences");
  command->footer(
      "Examples:\n"
      "  dba train --config configs/quickstart.yaml --run runs/first\n"
      "  dba train --run runs/reviews --set data.train=reviews.jsonl --set train.epochs=3\n"
      "  dba train X_TRAIN.ts --run runs/gestures --set data.test=X_TEST.ts    for 100 epochs\n"
      "  dba train --config mine.yaml --run runs/mine --seeds 1,2,3    runs/mine-seed1 and so on\n"
      "  dba train --resume runs/first          go on after a stop, bit by bit as if there had been none\n"
      "  dba train --config mine.yaml --run runs/tuned --init-from runs/first --new-head\n"
      "  dba train --print-config               every key, its meaning and its default\n"
      "SIGINT and SIGTERM finish the update, save and end with status 130 and 143.\n"
      "Exit status: 0 done, 1 failed, 2 wrong usage, 3 stopped by --minutes and to be resumed.");
  auto arguments = std::make_shared<TrainArguments>();
  command->add_option("data", arguments->data,
                      "training file or folder, over what --config and --set say of data.train");
  command->add_option("--config", arguments->config, "YAML file; keys that it leaves out keep their defaults");
  command->add_option("--set", arguments->overrides, "a.b=value, over what the file says; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--run", arguments->run, "new folder for all that the run writes");
  command
      ->add_option("--seeds", arguments->seeds,
                   "a run for each, one after the other, in the folders RUN-seedN; separated by commas or spaces")
      ->delimiter(',')
      ->check(kNotNegative);
  command->add_option("--resume", arguments->resume, "folder of a run that stopped");
  command->add_option("--init-from", arguments->init_from, "a trained run or model whose weights are the first ones");
  command->add_flag("--new-head", arguments->new_head, "with --init-from: learn a new head, for other classes");
  command->add_option("--minutes", arguments->minutes, "save and stop after so much time; go on with --resume")
      ->check(kPositive);
  command->add_option("--profile", arguments->profile, "on a GPU: tell where the time of so many updates goes")
      ->check(kPositive);
  command->add_flag("--print-config", arguments->print_config, "show the configuration and do nothing");
  command->add_flag("--quiet", arguments->quiet, "say nothing but errors");
  command->add_flag("--json", arguments->json, "print the report as JSON");
  command->callback([arguments] { train(*arguments); });
}

}  // namespace dba::cli

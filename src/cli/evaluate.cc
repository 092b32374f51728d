#include "cli/evaluate.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include "bytes/count.h"
#include "dba/run/progress.h"
#include "dba/train/baselines.h"
#include "dba/train/evaluate.h"
#include "train/metrics_json.h"

namespace dba::cli {
namespace {

using Json = nlohmann::ordered_json;

struct EvaluateArguments {
  std::filesystem::path run;
  std::filesystem::path data;
  std::string format;
  std::string device = "auto";
  bool baselines = false;
  bool json = false;
  bool quiet = false;
};

void print_confusion(const train::Metrics& metrics, const data::LabelSet& labels) {
  constexpr std::size_t most = 12;
  if (labels.size() > most) {
    return;
  }
  constexpr int narrowest = 6, widest = 12;
  int width = narrowest;
  for (const auto& name : labels.names()) {
    width = std::clamp(static_cast<int>(name.size()), width, widest);
  }
  std::printf("confusion (rows: true class, columns: predicted)\n%*s", widest, "");
  for (const auto& name : labels.names()) {
    std::printf(" %*.*s", width, width, name.c_str());
  }
  std::printf("\n");
  for (std::size_t c = 0; c < labels.size(); ++c) {
    std::printf("%*.*s", widest, widest, labels.name(c).c_str());
    for (const auto count : metrics.confusion[c]) {
      std::printf(" %*lld", width, static_cast<long long>(count));
    }
    std::printf("\n");
  }
}

/// What the logistic regression beside a model sees of a sequence, for programs and for people.
struct BaselineFeatures {
  const char* key;
  const char* words;
};

BaselineFeatures baseline_features(data::Kind kind) {
  return kind == data::Kind::series
             ? BaselineFeatures{"channel_means_logistic_regression", "means and mean squares of the channels"}
             : BaselineFeatures{"bag_of_tokens_logistic_regression", "bags of tokens"};
}

void evaluate(const EvaluateArguments& arguments) {
  auto model = train::Model::load(arguments.run);
  const auto& plan = model.plan();
  const auto file = arguments.data.empty() ? std::filesystem::path(plan.config.data.test) : arguments.data;
  if (file.empty()) {
    throw CLI::RequiredError("--data (the run was given no test file)");
  }
  const auto device = train::choose_device(arguments.device);
  model.module().to(device);
  const auto folder = std::filesystem::is_directory(arguments.run) ? arguments.run : arguments.run.parent_path();
  const auto cache = folder / "cache";
  std::filesystem::create_directories(cache);
  const bool given = !arguments.data.empty() || !arguments.format.empty();
  const auto set =
      train::open_set(plan, file, cache / "evaluation.cache", given ? std::optional(arguments.format) : std::nullopt);
  run::Progress::Options look;
  look.quiet = arguments.quiet || arguments.json;
  run::Progress progress(0, static_cast<std::int64_t>(set.size()), look);
  const auto metrics = train::evaluate(model, set, train::all_examples(set), device,
                                       [&](std::size_t done) { progress.update(static_cast<std::int64_t>(done)); });
  progress.finish();
  Json result{{"file", file.string()}, {"protocol", plan.config.protocol}, {"model", train::as_json(metrics)}};
  const auto features = baseline_features(plan.encoding.kind);
  if (arguments.baselines) {
    const auto training = train::open_set(plan, plan.config.data.train, cache / "baseline.cache");
    const auto baselines = train::measure_baselines(training, set);
    result["majority_class"] = baselines.majority;
    result[features.key] = baselines.regression;
  }
  if (arguments.json) {
    std::cout << result.dump(2) << "\n";
    return;
  }
  std::printf("%s: accuracy %.4f, macro-F1 %.4f, loss %.4f over %s\n", file.string().c_str(), metrics.accuracy,
              metrics.macro_f1, metrics.loss, bytes::counted(metrics.examples, "example").c_str());
  if (plan.config.protocol == "as_published") {
    std::printf("  protocol as_published: the model was chosen on the run's test file\n");
  }
  const auto& statistics = set.statistics();
  if (statistics.cut > 0) {
    std::printf("  %s cut: longer than the model takes\n", bytes::counted(statistics.cut, "sequence").c_str());
  }
  if (const auto missing = statistics.repairs.missing_values; missing > 0) {
    std::printf("  %s interpolated\n", bytes::counted(missing, "missing value").c_str());
  }
  if (arguments.baselines) {
    std::printf("  the majority class reaches %.4f, logistic regression on %s %.4f\n",
                result["majority_class"].get<double>(), features.words, result[features.key].get<double>());
  }
  print_confusion(metrics, plan.encoding.labels);
}

}  // namespace

void add_evaluate(CLI::App& app) {
  auto* command = app.add_subcommand("evaluate", "Measure a trained model on labelled data");
  command->footer(
      "Examples:\n"
      "  dba evaluate runs/first\n"
      "  dba evaluate runs/first --data more.jsonl --json\n"
      "  dba evaluate runs/first --baselines    with the majority class and a logistic regression beside it");
  auto arguments = std::make_shared<EvaluateArguments>();
  command->add_option("run", arguments->run, "a run's folder, or a model.safetensors")->required();
  command->add_option("--data", arguments->data, "labelled file; by default the run's test file");
  command->add_option("--format", arguments->format, "format of --data, where the extension does not tell");
  command->add_option("--device", arguments->device, "auto, cpu or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command->add_flag("--baselines", arguments->baselines, "train simple baselines on the run's training file");
  command->add_flag("--json", arguments->json, "for programs");
  command->add_flag("--quiet", arguments->quiet, "no progress bar");
  command->callback([arguments] { evaluate(*arguments); });
}

}  // namespace dba::cli

#include "train/run_evaluation.h"

#include <cstdio>

#include "dba/train/evaluate.h"

namespace dba::train {
namespace {

std::string figures_of(const char* part, const Metrics& metrics) {
  char text[128];
  std::snprintf(text, sizeof text, "%s accuracy %.4f, loss %.4f, macro-F1 %.4f", part, metrics.accuracy, metrics.loss,
                metrics.macro_f1);
  return text;
}

void write_figures(RunLog& log, const char* part, const Metrics& metrics, const Position& position) {
  log.write(part, position, {{"loss", metrics.loss}, {"accuracy", metrics.accuracy}, {"macro_f1", metrics.macro_f1}});
}

}  // namespace

RunEvaluation::RunEvaluation(const Protocol& protocol, const Sets& sets, at::Device device,
                             std::filesystem::path model_file, std::shared_ptr<const ResidentSet> train_on_device)
    : protocol_(protocol),
      sets_(sets),
      config_(sets.plan.config),
      device_(device),
      model_file_(std::move(model_file)),
      validation_on_device_(sets.validation ? put_on(device, *sets.validation, sets.plan) : std::move(train_on_device)),
      test_on_device_(protocol.watches_test() ? put_on(device, *sets.test, sets.plan) : nullptr) {}

void RunEvaluation::during_training(Model& model, Position& position, RunLog& log, run::Progress& progress) {
  position.evaluated = position.update;
  const bool validated = !sets_.validation_examples.empty();
  std::string told;
  Metrics metrics;
  if (validated) {
    metrics = on_validation(model);
    write_figures(log, "validation", metrics, position);
    told += figures_of("validation", metrics);
  }
  if (protocol_.watches_test()) {
    const auto test = on_test(model);
    write_figures(log, "test", test, position);
    protocol_.remember_best_test(test, position);
    told += (told.empty() ? "" : "; ") + figures_of("test", test);
  }
  const bool best = protocol_.takes(metrics, position);
  if (best) {
    model.save(model_file_);
  }
  if (!told.empty()) {
    progress.message("update " + std::to_string(position.update) + ": " + told +
                     (best && protocol_.chooses() ? " (best)" : ""));
  }
  if (validated) {
    compare_with_expectation(metrics.accuracy, position, progress);
  }
}

void RunEvaluation::at_end(RunSummary& summary, Model& best, Model& last, const Position& position) const {
  if (!sets_.validation_examples.empty()) {
    summary.validation = on_validation(best);
  }
  if (sets_.test) {
    summary.test = on_test(best);
    summary.protocols = protocol_.figures(position, *summary.test, [&] { return on_test(last); });
  }
}

Metrics RunEvaluation::on_validation(Model& model) const {
  return evaluate(model, sets_.validation_set(), sets_.validation_examples, device_, {}, validation_on_device_.get());
}

Metrics RunEvaluation::on_test(Model& model) const {
  return evaluate(model, *sets_.test, all_examples(*sets_.test), device_, {}, test_on_device_.get());
}

void RunEvaluation::compare_with_expectation(double accuracy, const Position& position, run::Progress& progress) {
  const auto& expected = config_.expect;
  if (expected.update == 0 || position.update < expected.update || expectation_told_) {
    return;
  }
  expectation_told_ = true;
  if (accuracy < expected.accuracy) {
    char text[240];
    std::snprintf(text, sizeof text,
                  "warning: the validation accuracy is %.4f at update %lld, and a good run has %.4f by update %lld "
                  "(expect); look at data, seed and settings before more time goes into it",
                  accuracy, static_cast<long long>(position.update), expected.accuracy,
                  static_cast<long long>(expected.update));
    progress.message(text);
  }
}

}  // namespace dba::train

#include "train/report.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include "train/metrics_json.h"

namespace dba::train {

RunSummary summarise(const config::TrainConfig& config, const Sets& sets, at::Device device, const Position& position) {
  RunSummary summary;
  summary.config = &config;
  summary.device = device;
  summary.updates = position.update;
  summary.best_update = position.best_update;
  summary.waited = position.waited;
  summary.evaluating = position.evaluating;
  summary.saving = position.saving;
  summary.repeated = position.repeated;
  summary.train_examples = sets.train_examples.size();
  summary.chosen_on = sets.chosen_on;
  summary.training_statistics = sets.train.statistics();
  summary.classes_without_examples = sets.classes_without_examples;
  // A part that the model's own bound on the length has cut is no longer the data alone.
  const auto note_digest = [&](const char* part, const data::CachedSet& set) {
    const auto bound = static_cast<std::int64_t>(set.encoding().tokeniser.options().max_length);
    if (set.statistics().cut == 0 || bound == config.data.max_length) {
      summary.data_digests[part] = set.digest();
    }
  };
  note_digest("training", sets.train);
  if (sets.validation) {
    summary.validation_statistics = sets.validation->statistics();
  }
  if (sets.validation && config.protocol != "as_published") {  // there it is the test file
    note_digest("validation", *sets.validation);
  }
  if (sets.test) {
    summary.test_statistics = sets.test->statistics();
    note_digest("test", *sets.test);
  }
  return summary;
}

std::string report_json(const RunSummary& summary, const Model& best) {
  const auto& config = *summary.config;
  const auto share = [&](double seconds) { return summary.seconds > 0 ? seconds / summary.seconds : 0.0; };
  const auto stepping = summary.seconds - summary.waited - summary.evaluating - summary.saving;
  nlohmann::ordered_json report{
      {"protocol", config.protocol},
      {"model_chosen_on", summary.chosen_on},
      {"seed", config.seed},
      {"version", summary.version},
      {"commit", summary.commit},
      {"torch", TORCH_VERSION},
      {"device", summary.device.str()},
      {"precision", config.precision},
      {"threads", at::get_num_threads()},
      {"method", config.model.method},
      {"form", config.model.form},
      {"parameters", best.parameter_count()},
      {"multiply_adds_per_sequence", best.operations(summary.training_statistics.mean_length)},
      {"mean_length", summary.training_statistics.mean_length},
      {"training_examples", summary.train_examples},
      {"data_digests", summary.data_digests},
      {"updates", summary.updates},
      {"best_update", summary.best_update},
      {"stopped_early", summary.stopped_early},
      {"seconds", summary.seconds},
      {"share_of_time_waiting_for_data", share(summary.waited)},
      {"seconds_per_update", summary.updates > 0 ? stepping / static_cast<double>(summary.updates) : 0.0},
      {"share_of_time",
       {{"updates", share(stepping)},
        {"data", share(summary.waited)},
        {"evaluations", share(summary.evaluating)},
        {"checkpoints", share(summary.saving)}}},
      {"updates_from_graphs", summary.repeated},
      {"classes", best.plan().encoding.labels.names()}};
  if (summary.validation) {
    report["validation"] = as_json(*summary.validation);
  }
  // What was cut or put right on the way, file by file.
  const auto repairs = [&report](const char* file, const data::SetStatistics& statistics) {
    report["repairs"][file] = {{"sequences_cut", statistics.cut},
                               {"missing_values_interpolated", statistics.repairs.missing_values},
                               {"channels_without_values", statistics.repairs.empty_channels},
                               {"empty_sequences", statistics.empty}};
  };
  repairs("training", summary.training_statistics);
  if (const auto* channels = best.plan().statistics()) {
    report["repairs"]["training"]["constant_channels"] = channels->constant();
  }
  report["repairs"]["training"]["classes_without_examples"] = summary.classes_without_examples;
  if (summary.validation_statistics) {
    repairs("validation", *summary.validation_statistics);
  }
  if (summary.test) {
    report["test"] = as_json(*summary.test);
    repairs("test", *summary.test_statistics);
    report["protocols"] = summary.protocols;
  }
  // A class that a header lists may be of bytes that are no UTF-8.
  return report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace dba::train

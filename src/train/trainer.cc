#include "dba/train/trainer.h"

#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "dba/config/config_file.h"
#include "dba/run/event_writer.h"
#include "dba/run/signals.h"
#include "dba/train/evaluate.h"
#include "dba/train/schedule.h"
#include "ops/fused.h"
#include "train/kernel_shares.h"
#include "train/metrics_json.h"
#include "train/prefetch.h"
#include "train/report.h"
#include "train/resident_set.h"
#include "train/sets.h"
#include "train/training_state.h"
#include "train/training_step.h"

namespace dba::train {
namespace {

using Json = nlohmann::ordered_json;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Parameters named_parameters(torch::nn::Module& module) {
  Parameters parameters;
  for (const auto& parameter : module.named_parameters()) {
    parameters.emplace_back(parameter.key(), parameter.value());
  }
  return parameters;
}

void make_deterministic(bool on) {
  if (on) {
    // cuBLAS reads it when its first handle is made.
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  }
  at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  at::globalContext().setDeterministicCuDNN(on);
  at::globalContext().setBenchmarkCuDNN(!on);
}

class Trainer {
 public:
  Trainer(const config::TrainConfig& config, run::RunFolder& folder, const TrainOptions& options)
      : config_(config),
        folder_(folder),
        options_(options),
        device_(choose_device(config.device)),
        messages_(0, 0, options.progress),
        store_(folder.checkpoints(), {static_cast<std::size_t>(config.train.keep)}) {
    TORCH_CHECK(config.precision != "bfloat16" || device_.is_cuda(),
                "dba train: precision bfloat16 needs a GPU, and the device is ", device_.str(),
                "; set precision to float32");
    if (config.threads > 0) {
      at::set_num_threads(static_cast<int>(config.threads));
    }
    make_deterministic(config.deterministic);
    torch::manual_seed(static_cast<std::uint64_t>(config.seed));
    sets_ =
        open_sets(config, folder.path(), options.resume, [this](const std::string& text) { messages_.message(text); });
    lengths_ = sets_->train.lengths();
    model_.emplace(sets_->plan);
    model_->module().to(device_);
    optimiser_ = make_optimiser(config.optimiser, named_parameters(model_->module()));
    window_.emplace(device_);
    first_bad_ = torch::full({}, -1, torch::dtype(at::kLong).device(device_));
    set_class_weights();
    step_.emplace(config_, *model_, *optimiser_, *window_, class_weights_, first_bad_, device_);
    keep_on_device();
    batches_ = plan(0);
    // With a token budget the epochs differ a little in their number of batches; the first one's is the measure.
    const auto per_epoch = (std::ssize(batches_) + config.train.accumulate - 1) / config.train.accumulate;
    total_ = config.train.epochs > 0 ? config.train.epochs * per_epoch : config.train.updates;
    if (config.train.updates > 0) {
      total_ = std::min(total_, config.train.updates);
    }
  }

  TrainResult run() {
    const run::StopSignals signals;
    const bool goes_on = options_.resume && resume();
    if (!goes_on && !config_.train.init_from.empty()) {
      model_->take_weights(config_.train.init_from, config_.train.new_head);
    }
    events_.emplace(folder_.events(), options_.resume ? position_.update : -1);
    progress_.emplace(position_.update, total_, options_.progress);
    started_ = now() - position_.seconds;
    last_checkpoint_ = now();
    const auto stream = recorder_ ? recorder_->own_stream() : nullptr;
    if (!goes_on) {
      timed(position_.saving, [this] { checkpoint(); });
    }
    while (!over() && !out_of_patience()) {
      epoch();
      if (const int signal = run::StopSignals::received(); signal != 0) {
        checkpoint();
        progress_->message("stopped by a signal at update " + std::to_string(position_.update) +
                           "; go on with: dba train --resume " + folder_.path().string());
        return {signal, false, ""};
      }
      if (out_of_time() && !over() && !out_of_patience()) {
        checkpoint();
        progress_->message("the time is over at update " + std::to_string(position_.update) + " of " +
                           std::to_string(total_) + "; go on with: dba train --resume " + folder_.path().string());
        return {0, true, ""};
      }
    }
    if (position_.evaluated != position_.update) {
      timed(position_.evaluating, [this] { evaluate_now(); });
    }
    timed(position_.saving, [this] { checkpoint(); });
    progress_->finish();
    return {0, false, finish()};
  }

 private:
  std::vector<std::vector<std::size_t>> plan(std::int64_t epoch) const {
    return plan_epoch(sets_->train_examples, lengths_, config_.batch, static_cast<std::uint64_t>(config_.seed), epoch);
  }

  void set_class_weights() {
    if (config_.train.class_weights != "balanced") {
      return;
    }
    const auto labels = sets_->train.labels();
    const auto classes = sets_->plan.encoding.labels.size();
    std::vector<double> count(classes, 0.0);
    for (const auto example : sets_->train_examples) {
      count[static_cast<std::size_t>(labels[example])] += 1;
    }
    std::vector<float> weights;
    for (const auto c : count) {
      weights.push_back(
          static_cast<float>(static_cast<double>(sets_->train_examples.size()) / (static_cast<double>(classes) * c)));
    }
    class_weights_ = torch::tensor(weights).to(device_);
  }

  TrainingState state() {
    return {*model_, *optimiser_, position_, *window_, device_};
  }

  // Returns whether there was a checkpoint to go on from.
  bool resume() {
    const auto warn = [this](const std::string& text) { messages_.message("warning: " + text); };
    const auto checkpoint = store_.latest(warn);
    if (checkpoint) {
      load_checkpoint(*checkpoint, state(), warn);
    } else {
      warn("there is no whole checkpoint; the run starts from the beginning");
    }
    folder_.drop_metrics_after(position_.update);
    messages_.message("resumed at update " + std::to_string(position_.update) + " of " + std::to_string(total_));
    return checkpoint.has_value();
  }

  bool over() const {
    return (config_.train.updates > 0 && position_.update >= config_.train.updates) ||
           (config_.train.epochs > 0 && position_.epoch >= config_.train.epochs);
  }

  bool out_of_patience() const {
    return config_.train.patience > 0 && position_.stale >= config_.train.patience;
  }

  bool out_of_time() const {
    return options_.seconds > 0 && now() - called_ > options_.seconds;
  }

  bool interrupted() const {
    return run::StopSignals::received() != 0 || out_of_time();
  }

  // One epoch, from position_.batch on, or what is left of training.
  void epoch() {
    batches_ = plan(position_.epoch);
    model_->module().train();
    {
      std::optional<Prefetcher> prefetcher;
      if (!train_on_device_) {
        prefetcher.emplace(static_cast<std::size_t>(position_.batch), batches_.size(),
                           static_cast<std::size_t>(config_.batch.prefetch), [this](std::size_t i) {
                             auto batch = collate(sets_->train, batches_[i], sets_->plan.statistics());
                             return device_.is_cuda() ? batch.pinned() : batch;
                           });
      }
      while (!over() && !out_of_patience() && !interrupted() && update(prefetcher)) {
        profile();
        if (position_.update % config_.train.log_every == 0) {
          log();
        }
        if (config_.train.evaluate_every > 0 && position_.update % config_.train.evaluate_every == 0) {
          timed(position_.evaluating, [this] { evaluate_now(); });
        }
        if (checkpoint_is_due()) {
          timed(position_.saving, [this] { checkpoint(); });
        }
      }
      position_.waited += prefetcher ? prefetcher->waited() : 0.0;
    }
    if (position_.batch >= std::ssize(batches_)) {
      ++position_.epoch;
      position_.batch = 0;
      if (evaluation_is_due()) {
        timed(position_.evaluating, [this] { evaluate_now(); });
      }
    }
  }

  // At the end of an epoch.
  bool evaluation_is_due() const {
    return config_.train.evaluate_every == 0 &&
           (position_.epoch == 1 || position_.epoch % config_.train.evaluate_epochs == 0 || over());
  }

  bool checkpoint_is_due() const {
    const auto& loop = config_.train;
    return (loop.checkpoint_every > 0 && position_.update % loop.checkpoint_every == 0) ||
           (loop.checkpoint_seconds > 0 && now() - last_checkpoint_ > loop.checkpoint_seconds);
  }

  // Up to `accumulate` batches and one step of the optimiser; false at the end of the epoch.
  bool update(std::optional<Prefetcher>& prefetcher) {
    const auto parts = std::min<std::int64_t>(config_.train.accumulate, std::ssize(batches_) - position_.batch);
    if (parts <= 0) {
      return false;
    }
    const auto number = position_.update + 1;
    const auto lr = learning_rate(config_.schedule, config_.optimiser.lr, number, total_);
    if (train_on_device_) {
      const auto first = static_cast<std::size_t>(position_.batch);
      step_->run(std::span(batches_).subspan(first, static_cast<std::size_t>(parts)), *train_on_device_, number, lr);
    } else {
      step_->run(
          parts, [&] { return prefetcher->next()->to(device_); }, number, lr);
    }
    position_.batch += parts;
    position_.update = number;
    if (device_.is_cpu()) {  // elsewhere a look at the loss would wait for the device
      check_finite();
    }
    progress_->update(position_.update, shown_loss_, shown_accuracy_);
    return true;
  }

  // The first updates of a run are not like the others.
  void profile() {
    constexpr std::int64_t kFirst = 30;
    if (options_.profile == 0 || device_.is_cpu()) {
      return;
    }
    ++since_start_;
    if (since_start_ == kFirst) {
      check_finite();
      watch_.emplace();
    } else if (since_start_ == kFirst + options_.profile) {
      check_finite();
      progress_->message(watch_->result(options_.profile));
      watch_.reset();
    }
  }

  // The wait for what is under way on the device does not count.
  template <class Work>
  void timed(double& seconds, Work work) {
    check_finite();
    const auto start = now();
    work();
    seconds += now() - start;
  }

  // Data go to the device, and the step is recorded, where configuration, device and program allow it.
  void keep_on_device() {
    const auto& plan = sets_->plan;
    const auto keep = [&](const data::CachedSet& set) -> std::shared_ptr<const ResidentSet> {
      if (!belongs_on(device_, set, config_.batch.on_device)) {
        return nullptr;
      }
      const auto rows = rows_for(config_, device_, set.lengths());
      return std::make_shared<ResidentSet>(set, plan.statistics(), device_, rows);
    };
    train_on_device_ = keep(sets_->train);
    validation_on_device_ = sets_->validation ? keep(*sets_->validation) : train_on_device_;
    if (config_.train.watch_test && config_.protocol != "as_published") {
      test_on_device_ = keep(*sets_->test);
    }
    if (device_.is_cuda() && train_on_device_ && config_.train.graph && config_.train.accumulate == 1) {
      recorder_ = make_step_recorder();
    }
    if (recorder_) {
      step_->record_with(*recorder_, [](const std::string& reason) {
        ops::log_choice("dba train: the step is not recorded as a graph: " + reason);
      });
    }
  }

  void check_finite() const {
    if (const auto bad = first_bad_.item<std::int64_t>(); bad >= 0) {
      diverged("the loss", bad);
    }
  }

  // A step can spoil the weights although its loss was finite; such weights are neither saved nor judged.
  void check_weights() {
    const torch::NoGradGuard no_grad;
    check_finite();
    const auto norms = torch::stack(at::_foreach_norm(model_->module().parameters()));
    if (!torch::isfinite(norms).all().item<bool>()) {
      diverged("a weight", position_.update);
    }
  }

  [[noreturn]] static void diverged(const std::string& what, std::int64_t update) {
    throw Diverged(what + " became NaN or infinite at update " + std::to_string(update) +
                   "; the last checkpoint is from before. Try a smaller optimiser.lr, a longer schedule.warmup or "
                   "train.clip=1");
  }

  void write(Json line) {
    folder_.append_metrics(line.dump());
    std::vector<run::Scalar> scalars;
    std::vector<std::string> tags;
    tags.reserve(line.size());
    const auto part = line.at("part").get<std::string>();
    for (const auto& [key, value] : line.items()) {
      if (value.is_number() && key != "step" && key != "epoch") {
        tags.push_back(part + "/" + key);
        scalars.push_back({tags.back(), value.get<float>()});
      }
    }
    events_->write(position_.update, scalars);
  }

  void log() {
    check_finite();
    const auto examples = window_->examples.item<double>();
    shown_loss_ = window_->loss.item<double>() / examples;
    shown_accuracy_ = window_->right.item<double>() / examples;
    window_->clear();
    write({{"step", position_.update},
           {"part", "train"},
           {"epoch", position_.epoch},
           {"loss", shown_loss_},
           {"accuracy", shown_accuracy_},
           {"lr", learning_rate(config_.schedule, config_.optimiser.lr, position_.update, total_)}});
  }

  void evaluate_now() {
    check_weights();
    position_.evaluated = position_.update;
    const bool validated = !sets_->validation_examples.empty();
    std::string told;
    Metrics metrics;
    if (validated) {
      metrics =
          evaluate_part("validation", sets_->validation_set(), sets_->validation_examples, validation_on_device_.get());
      told += figures_of("validation", metrics);
    }
    if (config_.train.watch_test && config_.protocol == "as_published") {
      remember_best_test(metrics);
    } else if (config_.train.watch_test) {
      const auto test = evaluate_part("test", *sets_->test, all_examples(*sets_->test), test_on_device_.get());
      remember_best_test(test);
      told += (told.empty() ? "" : "; ") + figures_of("test", test);
    }
    const bool choosing = config_.protocol != "last_epoch";
    const auto value = metrics.value(config_.train.metric);
    const bool best =
        !choosing || position_.best_update < 0 || Metrics::better(config_.train.metric, value, position_.best);
    if (best) {
      position_.best = value;
      position_.best_update = position_.update;
      position_.stale = 0;
      model_->save(folder_.path() / kModelFile);
    } else {
      ++position_.stale;
    }
    if (!told.empty()) {
      progress_->message("update " + std::to_string(position_.update) + ": " + told +
                         (best && choosing ? " (best)" : ""));
    }
    if (validated) {
      expect(metrics.accuracy);
    }
  }

  Metrics evaluate_part(const char* part, const data::CachedSet& set, std::span<const std::size_t> examples,
                        const ResidentSet* on_device) {
    const auto metrics = evaluate(*model_, set, examples, device_, {}, on_device);
    write({{"step", position_.update},
           {"part", part},
           {"epoch", position_.epoch},
           {"loss", metrics.loss},
           {"accuracy", metrics.accuracy},
           {"macro_f1", metrics.macro_f1}});
    return metrics;
  }

  static std::string figures_of(const char* part, const Metrics& metrics) {
    char text[128];
    std::snprintf(text, sizeof text, "%s accuracy %.4f, loss %.4f, macro-F1 %.4f", part, metrics.accuracy, metrics.loss,
                  metrics.macro_f1);
    return text;
  }

  // What a choice on the test set would have come to; under every protocol but as_published it chooses nothing.
  void remember_best_test(const Metrics& test) {
    const auto& metric = config_.train.metric;
    if (position_.best_test.empty() ||
        Metrics::better(metric, test.value(metric), Json::parse(position_.best_test).at(metric).get<double>())) {
      position_.best_test = of_update(position_.update, test).dump();
    }
  }

  static Json of_update(std::int64_t update, const Metrics& metrics) {
    Json json{{"update", update}};
    json.update(as_json(metrics));
    return json;
  }

  void expect(double accuracy) {
    const auto& expected = config_.expect;
    if (expected.update > 0 && position_.update >= expected.update && !expectation_told_) {
      expectation_told_ = true;
      if (accuracy < expected.accuracy) {
        char text[160];
        std::snprintf(text, sizeof text, "warning: a good run has a validation accuracy of %.4f by update %lld",
                      expected.accuracy, static_cast<long long>(expected.update));
        progress_->message(text);
      }
    }
  }

  void checkpoint() {
    check_weights();
    position_.seconds = now() - started_;
    folder_.sync_metrics();
    save_checkpoint(store_, state());
    last_checkpoint_ = now();
  }

  std::string finish() {
    auto best = Model::load(folder_.path());
    best.module().to(device_);
    RunSummary summary;
    summary.config = &config_;
    summary.version = options_.version;
    summary.commit = options_.commit;
    summary.device = device_;
    summary.updates = position_.update;
    summary.best_update = position_.best_update;
    summary.stopped_early = out_of_patience();
    summary.seconds = now() - started_;
    summary.waited = position_.waited;
    summary.evaluating = position_.evaluating;
    summary.saving = position_.saving;
    summary.repeated = step_->repeated();
    summary.train_examples = sets_->train_examples.size();
    summary.chosen_on = sets_->chosen_on;
    summary.training_statistics = sets_->train.statistics();
    if (sets_->validation) {
      summary.validation_statistics = sets_->validation->statistics();
    }
    if (!sets_->validation_examples.empty()) {
      summary.validation =
          evaluate(best, sets_->validation_set(), sets_->validation_examples, device_, {}, validation_on_device_.get());
    }
    if (sets_->test) {
      const auto on_test = [&](Model& model) {
        return evaluate(model, *sets_->test, all_examples(*sets_->test), device_, {}, test_on_device_.get());
      };
      summary.test = on_test(best);
      summary.test_statistics = sets_->test->statistics();
      auto& protocols = summary.protocols;
      protocols[config_.protocol] = of_update(position_.best_update, *summary.test);
      // Where patience ended the run, its last epoch was chosen too.
      if (config_.train.watch_test && config_.protocol != "last_epoch" && !out_of_patience()) {
        protocols["last_epoch"] = of_update(position_.update, on_test(*model_));
      }
      if (config_.train.watch_test && config_.protocol != "as_published") {
        protocols["as_published"] = Json::parse(position_.best_test);
      }
    }
    const auto report = report_json(summary, best);
    folder_.write_report(report);
    return report;
  }

  const config::TrainConfig config_;
  run::RunFolder& folder_;
  const TrainOptions options_;
  const double called_ = now();
  at::Device device_;
  run::Progress messages_;
  run::CheckpointStore store_;
  std::optional<Sets> sets_;
  std::vector<std::int64_t> lengths_;
  std::optional<Model> model_;
  std::unique_ptr<Optimiser> optimiser_;
  std::optional<Window> window_;
  std::optional<run::EventWriter> events_;
  std::vector<std::vector<std::size_t>> batches_;
  at::Tensor class_weights_;
  at::Tensor first_bad_;  // the first update with a loss that is not finite, or −1; on the device
  Position position_;
  std::shared_ptr<const ResidentSet> train_on_device_;
  std::shared_ptr<const ResidentSet> validation_on_device_;
  std::shared_ptr<const ResidentSet> test_on_device_;
  std::unique_ptr<StepRecorder> recorder_;
  std::optional<TrainingStep> step_;
  std::optional<KernelWatch> watch_;
  std::int64_t since_start_ = 0;
  std::int64_t total_ = 0;
  std::optional<run::Progress> progress_;
  double shown_loss_ = run::Progress::kUnknown;
  double shown_accuracy_ = run::Progress::kUnknown;
  double started_ = 0;
  double last_checkpoint_ = 0;
  bool expectation_told_ = false;
};

}  // namespace

TrainResult train(const config::TrainConfig& config, run::RunFolder& folder, const TrainOptions& options) {
  // Bad data are refused here, before the folder holds a run.
  Trainer trainer(config, folder, options);
  if (!options.resume) {
    folder.write_config(config::to_yaml(config));
  }
  return trainer.run();
}

}  // namespace dba::train

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
#include "train/autocast_step.h"
#include "train/prefetch.h"
#include "train/report.h"
#include "train/sets.h"
#include "train/training_state.h"

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
    if (!goes_on) {
      checkpoint();
    }
    while (!over() && !out_of_patience()) {
      epoch();
      if (const int signal = run::StopSignals::received(); signal != 0) {
        checkpoint();
        progress_->message("stopped by a signal at update " + std::to_string(position_.update) +
                           "; go on with: dba train --resume " + folder_.path().string());
        return {signal, ""};
      }
    }
    if (position_.evaluated != position_.update) {
      evaluate_now();
    }
    checkpoint();
    progress_->finish();
    return {0, finish()};
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

  // One epoch, from position_.batch on, or what is left of training.
  void epoch() {
    batches_ = plan(position_.epoch);
    model_->module().train();
    {
      Prefetcher prefetcher(static_cast<std::size_t>(position_.batch), batches_.size(),
                            static_cast<std::size_t>(config_.batch.prefetch), [this](std::size_t i) {
                              auto batch = collate(sets_->train, batches_[i], sets_->plan.statistics());
                              return device_.is_cuda() ? batch.pinned() : batch;
                            });
      while (!over() && !out_of_patience() && run::StopSignals::received() == 0 && update(prefetcher)) {
        if (position_.update % config_.train.log_every == 0) {
          log();
        }
        if (config_.train.evaluate_every > 0 && position_.update % config_.train.evaluate_every == 0) {
          evaluate_now();
        }
        if (checkpoint_is_due()) {
          checkpoint();
        }
      }
      position_.waited += prefetcher.waited();
    }
    if (position_.batch >= std::ssize(batches_)) {
      ++position_.epoch;
      position_.batch = 0;
      if (config_.train.evaluate_every == 0) {
        evaluate_now();
      }
    }
  }

  bool checkpoint_is_due() const {
    const auto& loop = config_.train;
    return (loop.checkpoint_every > 0 && position_.update % loop.checkpoint_every == 0) ||
           (loop.checkpoint_seconds > 0 && now() - last_checkpoint_ > loop.checkpoint_seconds);
  }

  // Up to `accumulate` batches and one step of the optimiser; false at the end of the epoch.
  bool update(Prefetcher& prefetcher) {
    optimiser_->zero_grad();
    const auto parts = std::min<std::int64_t>(config_.train.accumulate, std::ssize(batches_) - position_.batch);
    if (parts <= 0) {
      return false;
    }
    for (std::int64_t part = 0; part < parts; ++part) {
      const auto batch = prefetcher.next();
      const auto on_device = batch->to(device_);
      const AutocastStep autocast(device_.type(), config_.precision == "bfloat16");
      const auto logits = model_->forward(on_device);
      const auto loss = torch::nn::functional::cross_entropy(logits, on_device.labels,
                                                             torch::nn::functional::CrossEntropyFuncOptions()
                                                                 .weight(class_weights_)
                                                                 .label_smoothing(config_.train.label_smoothing));
      (loss / static_cast<double>(parts)).backward();
      count(loss.detach(), logits.detach(), on_device.labels);
      ++position_.batch;
    }
    if (config_.train.clip > 0) {
      clip_gradients(optimiser_->parameters(), config_.train.clip);
    }
    ++position_.update;
    optimiser_->step(learning_rate(config_.schedule, config_.optimiser.lr, position_.update, total_));
    if (device_.is_cpu()) {  // elsewhere a look at the loss would wait for the device
      check_finite();
    }
    progress_->update(position_.update, shown_loss_, shown_accuracy_);
    return true;
  }

  void count(const at::Tensor& loss, const at::Tensor& logits, const at::Tensor& labels) {
    const auto examples = static_cast<double>(labels.size(0));
    window_->loss += loss.to(at::kDouble) * examples;
    window_->right += logits.argmax(1).eq(labels).sum().to(at::kDouble);
    window_->examples += examples;
    const auto bad = torch::isfinite(loss).logical_not().logical_and(first_bad_.lt(0));
    first_bad_ = torch::where(bad, torch::full_like(first_bad_, position_.update + 1), first_bad_);
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
    const auto metrics = evaluate(*model_, sets_->validation_set(), sets_->validation_examples, device_);
    write({{"step", position_.update},
           {"part", "validation"},
           {"epoch", position_.epoch},
           {"loss", metrics.loss},
           {"accuracy", metrics.accuracy},
           {"macro_f1", metrics.macro_f1}});
    const auto value = metrics.value(config_.train.metric);
    const bool best = position_.best_update < 0 || Metrics::better(config_.train.metric, value, position_.best);
    if (best) {
      position_.best = value;
      position_.best_update = position_.update;
      position_.stale = 0;
      model_->save(folder_.path() / kModelFile);
    } else {
      ++position_.stale;
    }
    char text[160];
    std::snprintf(text, sizeof text, "update %lld: validation accuracy %.4f, loss %.4f, macro-F1 %.4f%s",
                  static_cast<long long>(position_.update), metrics.accuracy, metrics.loss, metrics.macro_f1,
                  best ? " (best)" : "");
    progress_->message(text);
    position_.evaluated = position_.update;
    expect(metrics.accuracy);
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
    summary.train_examples = sets_->train_examples.size();
    summary.validation_source = sets_->validation_source;
    summary.training_statistics = sets_->train.statistics();
    if (sets_->validation) {
      summary.validation_statistics = sets_->validation->statistics();
    }
    summary.validation = evaluate(best, sets_->validation_set(), sets_->validation_examples, device_);
    std::exception_ptr test_error;
    if (!sets_->test_file.empty()) {
      try {
        const auto test = open_set(sets_->plan, sets_->test_file, sets_->cache / "test.cache");
        summary.test = evaluate(best, test, all_examples(test), device_);
        summary.test_statistics = test.statistics();
      } catch (const std::exception& error) {
        summary.test_error = error.what();
        test_error = std::current_exception();
      }
    }
    const auto report = report_json(summary, best);
    folder_.write_report(report);
    if (test_error) {
      std::rethrow_exception(test_error);
    }
    return report;
  }

  const config::TrainConfig config_;
  run::RunFolder& folder_;
  const TrainOptions options_;
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

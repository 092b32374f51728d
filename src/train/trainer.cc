#include "dba/train/trainer.h"

#include <torch/torch.h>

#include <chrono>
#include <cstdlib>

#include "dba/config/config_file.h"
#include "dba/run/signals.h"
#include "dba/train/evaluate.h"
#include "dba/train/schedule.h"
#include "ops/fused.h"
#include "train/finite_watch.h"
#include "train/kernel_shares.h"
#include "train/prefetch.h"
#include "train/report.h"
#include "train/resident_set.h"
#include "train/run_evaluation.h"
#include "train/run_log.h"
#include "train/sets.h"
#include "train/training_state.h"
#include "train/training_step.h"

namespace dba::train {
namespace {

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
        protocol_(config_),
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
    finite_.emplace(device_);
    if (config.train.class_weights == "balanced") {
      class_weights_ = torch::tensor(balanced_class_weights(*sets_)).to(device_);
    }
    step_.emplace(config_, *model_, *optimiser_, *window_, class_weights_, finite_->first_bad(), device_);
    train_on_device_ = put_on(device_, sets_->train, sets_->plan);
    evaluation_.emplace(protocol_, *sets_, device_, folder.path() / kModelFile, train_on_device_);
    record_steps();
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
    log_.emplace(folder_, options_.resume ? position_.update : -1);
    progress_.emplace(position_.update, total_, options_.progress);
    started_ = now() - position_.seconds;
    last_checkpoint_ = now();
    const auto stream = recorder_ ? recorder_->own_stream() : nullptr;
    if (!goes_on) {
      timed(position_.saving, [this] { checkpoint(); });
    }
    while (!done()) {
      epoch();
      if (const int signal = run::StopSignals::received(); signal != 0) {
        checkpoint();
        progress_->message("stopped by a signal at update " + std::to_string(position_.update) +
                           "; go on with: dba train --resume " + folder_.path().string());
        return {signal, false, ""};
      }
      if (out_of_time() && !done()) {
        checkpoint();
        progress_->message("the time is over at update " + std::to_string(position_.update) + " of " +
                           std::to_string(total_) + "; go on with: dba train --resume " + folder_.path().string());
        return {0, true, ""};
      }
    }
    if (position_.evaluated != position_.update) {
      timed(position_.evaluating, [this] { evaluate(); });
    }
    timed(position_.saving, [this] { checkpoint(); });
    progress_->finish();
    return {0, false, finish()};
  }

 private:
  std::vector<std::vector<std::size_t>> plan(std::int64_t epoch) const {
    return plan_epoch(sets_->train_examples, lengths_, config_.batch, static_cast<std::uint64_t>(config_.seed), epoch);
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

  bool done() const {
    return over() || protocol_.out_of_patience(position_);
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
      while (!done() && !interrupted() && update(prefetcher)) {
        profile();
        if (position_.update % config_.train.log_every == 0) {
          log_training();
        }
        if (config_.train.evaluate_every > 0 && position_.update % config_.train.evaluate_every == 0) {
          timed(position_.evaluating, [this] { evaluate(); });
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
        timed(position_.evaluating, [this] { evaluate(); });
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
    const auto repeated_before = step_->repeated();
    if (train_on_device_) {
      const auto first = static_cast<std::size_t>(position_.batch);
      step_->run(std::span(batches_).subspan(first, static_cast<std::size_t>(parts)), *train_on_device_, number, lr);
    } else {
      step_->run(
          parts, [&] { return prefetcher->next()->to(device_); }, number, lr);
    }
    position_.batch += parts;
    position_.update = number;
    position_.repeated += step_->repeated() - repeated_before;
    if (device_.is_cpu()) {  // elsewhere a look at the loss would wait for the device
      finite_->check_losses();
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
      finite_->check_losses();
      watch_.emplace();
    } else if (since_start_ == kFirst + options_.profile) {
      finite_->check_losses();
      progress_->message(watch_->result(options_.profile));
      watch_.reset();
    }
  }

  // The wait for what is under way on the device does not count.
  template <class Work>
  void timed(double& seconds, Work work) {
    finite_->check_losses();
    const auto start = now();
    work();
    seconds += now() - start;
  }

  // Where configuration, device and program allow it.
  void record_steps() {
    if (device_.is_cuda() && train_on_device_ && config_.train.graph && config_.train.accumulate == 1) {
      recorder_ = make_step_recorder();
    }
    if (recorder_) {
      step_->record_with(*recorder_, [](const std::string& reason) {
        ops::log_choice("dba train: the step is not recorded as a graph: " + reason);
      });
    }
  }

  void log_training() {
    finite_->check_losses();
    const auto examples = window_->examples.item<double>();
    shown_loss_ = window_->loss.item<double>() / examples;
    shown_accuracy_ = window_->right.item<double>() / examples;
    window_->clear();
    log_->write("train", position_,
                {{"loss", shown_loss_},
                 {"accuracy", shown_accuracy_},
                 {"lr", learning_rate(config_.schedule, config_.optimiser.lr, position_.update, total_)}});
  }

  void evaluate() {
    finite_->check(model_->module(), position_.update);
    evaluation_->during_training(*model_, position_, *log_, *progress_);
  }

  void checkpoint() {
    finite_->check(model_->module(), position_.update);
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
    summary.stopped_early = protocol_.out_of_patience(position_);
    summary.seconds = now() - started_;
    summary.waited = position_.waited;
    summary.evaluating = position_.evaluating;
    summary.saving = position_.saving;
    summary.repeated = position_.repeated;
    summary.train_examples = sets_->train_examples.size();
    summary.chosen_on = sets_->chosen_on;
    summary.training_statistics = sets_->train.statistics();
    if (sets_->validation) {
      summary.validation_statistics = sets_->validation->statistics();
    }
    if (sets_->test) {
      summary.test_statistics = sets_->test->statistics();
    }
    evaluation_->at_end(summary, best, *model_, position_);
    const auto report = report_json(summary, best);
    folder_.write_report(report);
    return report;
  }

  const config::TrainConfig config_;
  run::RunFolder& folder_;
  const TrainOptions options_;
  const Protocol protocol_;
  const double called_ = now();
  at::Device device_;
  run::Progress messages_;
  run::CheckpointStore store_;
  std::optional<Sets> sets_;
  std::vector<std::int64_t> lengths_;
  std::optional<Model> model_;
  std::unique_ptr<Optimiser> optimiser_;
  std::optional<Window> window_;
  std::vector<std::vector<std::size_t>> batches_;
  at::Tensor class_weights_;
  std::optional<FiniteWatch> finite_;
  Position position_;
  std::shared_ptr<const ResidentSet> train_on_device_;
  std::optional<RunEvaluation> evaluation_;
  std::unique_ptr<StepRecorder> recorder_;
  std::optional<TrainingStep> step_;
  std::optional<KernelWatch> watch_;
  std::int64_t since_start_ = 0;
  std::int64_t total_ = 0;
  std::optional<RunLog> log_;
  std::optional<run::Progress> progress_;
  double shown_loss_ = run::Progress::kUnknown;
  double shown_accuracy_ = run::Progress::kUnknown;
  double started_ = 0;
  double last_checkpoint_ = 0;
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

#include "dba/train/trainer.h"

#include <torch/torch.h>

#include <chrono>

#include "dba/config/config_file.h"
#include "dba/run/signals.h"
#include "dba/train/schedule.h"
#include "train/kernel_shares.h"
#include "train/learner.h"
#include "train/report.h"
#include "train/run_evaluation.h"
#include "train/run_log.h"
#include "train/timetable.h"

namespace dba::train {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Trainer {
 public:
  Trainer(const config::TrainConfig& config, run::RunFolder& folder, const TrainOptions& options)
      : config_(config),
        folder_(folder),
        options_(options),
        protocol_(config_),
        messages_(0, 0, options.progress),
        store_(folder.checkpoints(), {static_cast<std::size_t>(config.train.keep)}),
        learner_(config_, folder.path(), options.resume, [this](const std::string& text) { messages_.message(text); }),
        evaluation_(protocol_, learner_.sets(), learner_.device(), folder.path() / kModelFile,
                    learner_.train_on_device()),
        timetable_(config_, learner_.batches()),
        schedule_(timetable_.updates() == config_.train.updates ? config_.schedule
                                                                : fitted(config_.schedule, timetable_.updates())) {
    if (schedule_.warmup < config_.schedule.warmup) {
      messages_.message("schedule.warmup is " + std::to_string(config_.schedule.warmup) + ", the whole run " +
                        std::to_string(timetable_.updates()) + " updates: the warm-up takes " +
                        std::to_string(schedule_.warmup) + " of them");
    }
  }

  TrainResult run() {
    const run::StopSignals signals;
    const bool goes_on = options_.resume && resume();
    if (!goes_on && !config_.train.init_from.empty()) {
      learner_.model().take_weights(config_.train.init_from, config_.train.new_head);
    }
    if (!options_.resume) {
      folder_.write_config(config::to_yaml(config_));  // the run begins
    }
    log_.emplace(folder_, options_.resume ? position_.update : -1);
    progress_.emplace(position_.update, timetable_.updates(), options_.progress);
    started_ = now() - position_.seconds;
    last_checkpoint_ = now();
    const auto recording = learner_.record_updates();
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
                           std::to_string(timetable_.updates()) + "; go on with: dba train --resume " +
                           folder_.path().string());
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
  // Returns whether there was a checkpoint to go on from.
  bool resume() {
    const auto warn = [this](const std::string& text) { messages_.message("warning: " + text); };
    const auto checkpoint = store_.latest(warn);
    if (checkpoint) {
      load_checkpoint(*checkpoint, learner_.state(position_), warn);
    } else {
      warn("there is no whole checkpoint; the run starts from the beginning");
    }
    folder_.drop_metrics_after(position_.update);
    messages_.message("resumed at update " + std::to_string(position_.update) + " of " +
                      std::to_string(timetable_.updates()));
    return checkpoint.has_value();
  }

  bool done() const {
    return timetable_.is_over(position_) || protocol_.out_of_patience(position_);
  }

  bool out_of_time() const {
    return options_.seconds > 0 && now() - called_ > options_.seconds;
  }

  bool interrupted() const {
    return run::StopSignals::received() != 0 || out_of_time();
  }

  // One epoch, from position_.batch on, or what is left of training.
  void epoch() {
    learner_.begin_epoch(position_.epoch, position_.batch);
    while (!done() && !interrupted() && update()) {
      profile();
      if (timetable_.log_is_due(position_)) {
        log_training();
      }
      if (timetable_.evaluation_is_due_after_update(position_)) {
        timed(position_.evaluating, [this] { evaluate(); });
      }
      if (timetable_.checkpoint_is_due(position_, now() - last_checkpoint_)) {
        timed(position_.saving, [this] { checkpoint(); });
      }
    }
    position_.waited += learner_.end_epoch();
    if (position_.batch >= learner_.batches()) {
      ++position_.epoch;
      position_.batch = 0;
      if (timetable_.evaluation_is_due_after_epoch(position_)) {
        timed(position_.evaluating, [this] { evaluate(); });
      }
    }
  }

  double rate(std::int64_t update) const {
    return learning_rate(schedule_, config_.optimiser.lr, update, timetable_.updates());
  }

  // Up to `accumulate` batches and one step of the optimiser; false at the end of the epoch.
  bool update() {
    const auto parts = std::min<std::int64_t>(config_.train.accumulate, learner_.batches() - position_.batch);
    if (parts <= 0) {
      return false;
    }
    const auto number = position_.update + 1;
    const auto repeated_before = learner_.repeated();
    learner_.update(position_.batch, parts, number, rate(number));
    position_.batch += parts;
    position_.update = number;
    position_.repeated += learner_.repeated() - repeated_before;
    if (learner_.device().is_cpu()) {  // elsewhere a look at the loss would wait for the device
      learner_.finite().check_losses();
    }
    progress_->update(position_.update, shown_loss_, shown_accuracy_);
    return true;
  }

  // The first updates of a run are not like the others.
  void profile() {
    constexpr std::int64_t kFirst = 30;
    if (options_.profile == 0 || learner_.device().is_cpu()) {
      return;
    }
    ++since_start_;
    if (since_start_ == kFirst) {
      learner_.finite().check_losses();
      watch_.emplace();
    } else if (since_start_ == kFirst + options_.profile) {
      learner_.finite().check_losses();
      progress_->message(watch_->result(options_.profile));
      watch_.reset();
    }
  }

  // The wait for what is under way on the device does not count.
  template <class Work>
  void timed(double& seconds, Work work) {
    learner_.finite().check_losses();
    const auto start = now();
    work();
    seconds += now() - start;
  }

  void log_training() {
    learner_.finite().check_losses();
    auto& window = learner_.window();
    const auto examples = window.examples.item<double>();
    shown_loss_ = window.loss.item<double>() / examples;
    shown_accuracy_ = window.right.item<double>() / examples;
    window.clear();
    log_->write("train", position_,
                {{"loss", shown_loss_}, {"accuracy", shown_accuracy_}, {"lr", rate(position_.update)}});
  }

  void evaluate() {
    learner_.finite().check(learner_.model().module(), position_.update);
    evaluation_.during_training(learner_.model(), position_, *log_, *progress_);
  }

  void checkpoint() {
    learner_.finite().check(learner_.model().module(), position_.update);
    position_.seconds = now() - started_;
    folder_.sync_metrics();
    save_checkpoint(store_, learner_.state(position_));
    last_checkpoint_ = now();
  }

  std::string finish() {
    auto best = Model::load(folder_.path());
    best.module().to(learner_.device());
    auto summary = summarise(config_, learner_.sets(), learner_.device(), position_);
    summary.version = options_.version;
    summary.commit = options_.commit;
    summary.stopped_early = protocol_.out_of_patience(position_);
    summary.seconds = now() - started_;
    evaluation_.at_end(summary, best, learner_.model(), position_);
    const auto report = report_json(summary, best);
    folder_.write_report(report);
    return report;
  }

  const config::TrainConfig config_;
  run::RunFolder& folder_;
  const TrainOptions options_;
  const Protocol protocol_;
  const double called_ = now();
  run::Progress messages_;
  run::CheckpointStore store_;
  Learner learner_;
  RunEvaluation evaluation_;
  const Timetable timetable_;
  const config::ScheduleConfig schedule_;
  Position position_;
  std::optional<KernelWatch> watch_;
  std::int64_t since_start_ = 0;
  std::optional<RunLog> log_;
  std::optional<run::Progress> progress_;
  double shown_loss_ = run::Progress::kUnknown;
  double shown_accuracy_ = run::Progress::kUnknown;
  double started_ = 0;
  double last_checkpoint_ = 0;
};

}  // namespace

TrainResult train(const config::TrainConfig& config, run::RunFolder& folder, const TrainOptions& options) {
  check_attention(config.model);  // before data are read, which may take long
  // Bad data and weights that do not fit are refused before the folder holds a run.
  return Trainer(config, folder, options).run();
}

}  // namespace dba::train

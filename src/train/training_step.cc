#include "train/training_step.h"

#include <torch/torch.h>

#include <bit>

#include "train/autocast_step.h"

namespace dba::train {
namespace {

MakeStepRecorder& recorder_maker() {
  static MakeStepRecorder make;
  return make;
}

/// A recording keeps the launches of a whole step in memory, on the host and on the device.
constexpr std::int64_t kMostRecordings = 256;

}  // namespace

void set_step_recorder(MakeStepRecorder make) {
  recorder_maker() = std::move(make);
}

std::unique_ptr<StepRecorder> make_step_recorder() {
  return recorder_maker() ? recorder_maker()() : nullptr;
}

TrainingStep::TrainingStep(const config::TrainConfig& config, Model& model, Optimiser& optimiser, Window& window,
                           at::Tensor class_weights, at::Tensor first_bad, at::Device device)
    : config_(config),
      model_(model),
      optimiser_(optimiser),
      window_(window),
      class_weights_(std::move(class_weights)),
      first_bad_(std::move(first_bad)),
      device_(device) {}

void TrainingStep::record_with(StepRecorder& recorder, std::function<void(const std::string&)> say) {
  recorder_ = &recorder;
  say_ = std::move(say);
}

void TrainingStep::add_gradients(const Batch& batch, std::int64_t batches, const at::Tensor& update) {
  const AutocastStep autocast(device_.type(), config_.precision == "bfloat16");
  const auto logits = model_.forward(batch);
  const auto loss = torch::nn::functional::cross_entropy(logits, batch.labels,
                                                         torch::nn::functional::CrossEntropyFuncOptions()
                                                             .weight(class_weights_)
                                                             .label_smoothing(config_.train.label_smoothing));
  (loss / static_cast<double>(batches)).backward();
  count(loss.detach(), logits.detach(), batch.labels, update);
}

// In place throughout: a recorded step finds the sums where they were.
void TrainingStep::count(const at::Tensor& loss, const at::Tensor& logits, const at::Tensor& labels,
                         const at::Tensor& update) {
  const auto examples = static_cast<double>(labels.size(0));
  window_.loss.add_(loss.to(at::kDouble), examples);
  window_.right.add_(logits.argmax(1).eq(labels).sum());
  window_.examples.add_(examples);
  const auto bad = torch::isfinite(loss).logical_not().logical_and(first_bad_.lt(0));
  first_bad_.copy_(torch::where(bad, update, first_bad_));
}

void TrainingStep::clip() {
  if (config_.train.clip > 0) {
    clip_gradients(optimiser_.parameters(), config_.train.clip);
  }
}

// The numbers of the optimiser travel as the bits of doubles.
std::vector<std::int64_t> TrainingStep::message(std::int64_t update, const std::vector<double>& numbers) const {
  std::vector<std::int64_t> message{update};
  for (const auto number : numbers) {
    message.push_back(std::bit_cast<std::int64_t>(number));
  }
  return message;
}

void TrainingStep::run(std::int64_t batches, const std::function<Batch()>& next, std::int64_t update, double lr) {
  const bool on_host = device_.is_cpu();
  const auto numbers = on_host ? std::vector<double>() : optimiser_.next_numbers(lr);
  const auto sent_numbers = sent(message(update, numbers), device_);
  optimiser_.zero_grad();
  for (std::int64_t i = 0; i < batches; ++i) {
    add_gradients(next(), batches, sent_numbers.select(0, 0));
  }
  clip();
  if (on_host) {
    optimiser_.step(lr);
  } else {
    optimiser_.step(sent_numbers.slice(0, 1).view(at::kDouble));
  }
}

void TrainingStep::run(std::span<const std::vector<std::size_t>> batches, const ResidentSet& set, std::int64_t update,
                       double lr) {
  if (recorder_ == nullptr || batches.size() != 1) {
    std::size_t next = 0;
    return run(
        std::ssize(batches), [&] { return set.batch(batches[next++]); }, update, lr);
  }
  const bool settled = optimiser_.settled();
  run_recorded(batches.front(), set, message(update, optimiser_.next_numbers(lr)), settled);
}

void TrainingStep::run_batch(const at::Tensor& message, const ResidentSet& set, const BatchLayout& layout) {
  const auto batch_numbers = set.count_of_numbers(layout);
  optimiser_.zero_grad();
  add_gradients(set.gather(message, layout), /*batches=*/1, message.select(0, batch_numbers));
  clip();
  optimiser_.step(message.slice(0, batch_numbers + 1).view(at::kDouble));
}

void TrainingStep::run_recorded(std::span<const std::size_t> examples, const ResidentSet& set,
                                const std::vector<std::int64_t>& step_message, bool settled) {
  auto numbers = set.numbers(examples);
  numbers.insert(numbers.end(), step_message.begin(), step_message.end());
  const auto key = set.layout(examples);
  auto& layout = layouts_[key];
  if (layout.recorded) {
    layout.message.copy_(ready_to_send(numbers, device_), /*non_blocking=*/true);
    layout.recorded();
    ++repeated_;
    return;
  }
  layout.message = sent(numbers, device_);
  // Libraries set themselves up when they first meet a shape, which a recording does not allow: that update runs.
  if (!layout.seen || !settled || recorded_ >= kMostRecordings) {
    layout.seen = true;
    return run_batch(layout.message, set, key);
  }
  try {
    layout.recorded = recorder_->record([this, message = layout.message, &set, key] { run_batch(message, set, key); });
  } catch (const c10::Error& error) {
    say_(error.what_without_backtrace());
    recorder_ = nullptr;
    const auto message = layout.message;
    layouts_.clear();
    return run_batch(message, set, key);
  }
  ++recorded_;
  layout.recorded();
  ++repeated_;
}

}  // namespace dba::train

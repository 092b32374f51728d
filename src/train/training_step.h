#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "dba/train/optimiser.h"
#include "train/resident_set.h"
#include "train/step_recorder.h"
#include "train/training_state.h"

namespace dba::train {

/// One update: forward, backward, clipping, optimiser, and the sums of the log, all on the device and without a wait
/// for it.
class TrainingStep {
 public:
  /// first_bad: int64 scalar on the device, the first update with a loss that is not finite, or −1.
  TrainingStep(const config::TrainConfig& config, Model& model, Optimiser& optimiser, Window& window,
               at::Tensor class_weights, at::Tensor first_bad, at::Device device);

  /// The gradients of so many batches, handed out by `next` on the device, make update number `update`.
  void run(std::int64_t batches, const std::function<Batch()>& next, std::int64_t update, double lr);

  /// The same with batches of a set on the device. With a recorder the work of an update is recorded when its layout
  /// comes up again, and repeated from then on: the same kernels with the same numbers.
  void run(std::span<const std::vector<std::size_t>> batches, const ResidentSet& set, std::int64_t update, double lr);

  /// The recorder must outlive what is run. `say` hears why a step cannot be recorded; all steps run one by one then.
  void record_with(StepRecorder& recorder, std::function<void(const std::string&)> say);
  /// Updates that were repeated from a recording.
  std::int64_t repeated() const {
    return repeated_;
  }

 private:
  /// What is known of the steps of one layout.
  struct Layout {
    at::Tensor message;  ///< numbers of the batch, number of the update, numbers of the optimiser
    StepRecorder::Work recorded;
    bool seen = false;
  };

  void add_gradients(const Batch& batch, std::int64_t batches, const at::Tensor& update);
  void count(const at::Tensor& loss, const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& update);
  void clip();
  std::vector<std::int64_t> message(std::int64_t update, const std::vector<double>& numbers) const;
  /// An update from a message as it lies on the device.
  void run_batch(const at::Tensor& message, const ResidentSet& set, const BatchLayout& layout);
  void run_recorded(std::span<const std::size_t> examples, const ResidentSet& set,
                    const std::vector<std::int64_t>& message, bool settled);

  const config::TrainConfig& config_;
  Model& model_;
  Optimiser& optimiser_;
  Window& window_;
  at::Tensor class_weights_;
  at::Tensor first_bad_;
  at::Device device_;
  StepRecorder* recorder_ = nullptr;
  std::function<void(const std::string&)> say_;
  std::map<BatchLayout, Layout> layouts_;
  std::int64_t recorded_ = 0;
  std::int64_t repeated_ = 0;
};

}  // namespace dba::train

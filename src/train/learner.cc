#include "train/learner.h"

#include <torch/torch.h>

#include <cstdlib>

#include "dba/train/evaluate.h"
#include "ops/fused.h"

namespace dba::train {
namespace {

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

/// The device, with the process made ready for the run.
at::Device ready_device(const config::TrainConfig& config) {
  const auto device = choose_device(config.device);
  TORCH_CHECK(config.precision != "bfloat16" || device.is_cuda(),
              "dba train: precision bfloat16 needs a GPU, and the device is ", device.str(),
              "; set precision to float32");
  if (config.threads > 0) {
    at::set_num_threads(static_cast<int>(config.threads));
  }
  make_deterministic(config.deterministic);
  torch::manual_seed(static_cast<std::uint64_t>(config.seed));
  return device;
}

Parameters parameters_on(at::Device device, torch::nn::Module& module) {
  module.to(device);
  Parameters parameters;
  for (const auto& parameter : module.named_parameters()) {
    parameters.emplace_back(parameter.key(), parameter.value());
  }
  return parameters;
}

/// Undefined: all classes count by their examples.
at::Tensor class_weights(const config::TrainConfig& config, const Sets& sets, at::Device device) {
  return config.train.class_weights == "balanced" ? torch::tensor(balanced_class_weights(sets)).to(device)
                                                  : at::Tensor();
}

}  // namespace

Learner::Learner(const config::TrainConfig& config, const std::filesystem::path& folder, bool resume,
                 const std::function<void(const std::string&)>& say)
    : config_(config),
      device_(ready_device(config)),
      sets_(open_sets(config, folder, resume, say)),
      lengths_(sets_.train.lengths()),
      model_(sets_.plan),
      optimiser_(make_optimiser(config.optimiser, parameters_on(device_, model_.module()))),
      window_(device_),
      finite_(device_),
      step_(config_, model_, *optimiser_, window_, class_weights(config, sets_, device_), finite_.first_bad(), device_),
      train_on_device_(put_on(device_, sets_.train, sets_.plan)),
      batches_(plan(0)) {}

std::vector<std::vector<std::size_t>> Learner::plan(std::int64_t epoch) const {
  return plan_epoch(sets_.train_examples, lengths_, config_.batch, static_cast<std::uint64_t>(config_.seed), epoch);
}

std::shared_ptr<void> Learner::record_updates() {
  if (device_.is_cuda() && train_on_device_ && config_.train.graph && config_.train.accumulate == 1) {
    recorder_ = make_step_recorder();
  }
  if (!recorder_) {
    return nullptr;
  }
  step_.record_with(*recorder_, [](const std::string& reason) {
    ops::log_choice("dba train: the step is not recorded as a graph: " + reason);
  });
  return recorder_->own_stream();
}

void Learner::begin_epoch(std::int64_t epoch, std::int64_t batch) {
  batches_ = plan(epoch);
  model_.module().train();
  if (!train_on_device_) {
    prefetcher_.emplace(static_cast<std::size_t>(batch), batches_.size(),
                        static_cast<std::size_t>(config_.batch.prefetch), [this](std::size_t i) {
                          auto made = collate(sets_.train, batches_[i], sets_.plan.statistics());
                          return device_.is_cuda() ? made.pinned() : made;
                        });
  }
}

void Learner::update(std::int64_t first, std::int64_t count, std::int64_t number, double lr) {
  if (train_on_device_) {
    step_.run(std::span(batches_).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
              *train_on_device_, number, lr);
  } else {
    step_.run(
        count, [this] { return prefetcher_->next()->to(device_); }, number, lr);
  }
}

double Learner::end_epoch() {
  const double waited = prefetcher_ ? prefetcher_->waited() : 0.0;
  prefetcher_.reset();
  return waited;
}

}  // namespace dba::train

#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <memory>
#include <string>

#include "dba/config/train_config.h"
#include "dba/data/cache.h"
#include "dba/data/encoding.h"
#include "dba/train/batches.h"

namespace dba::train {

/// Everything that is fixed before a model sees its first batch, and that prediction needs again.
struct ModelPlan {
  config::TrainConfig config;
  data::Encoding encoding;
  std::int64_t longest = 0;             ///< the longest sequence the model takes; 0: any
  data::ChannelStatistics standardise;  ///< empty: series are taken as they are

  const data::ChannelStatistics* statistics() const {
    return standardise.mean.empty() ? nullptr : &standardise;
  }
};

/// Refuses an attention, or options of it, that no Model could be made with, whatever the data are. It needs none.
void check_attention(const config::ModelConfig& model);

/// A classifier of sequences, or of pairs of them, as the configuration describes it.
class Model {
 public:
  explicit Model(ModelPlan plan);

  /// Logits (B, classes) in float32.
  at::Tensor forward(const Batch& batch);

  torch::nn::Module& module() {
    return *module_;
  }
  const ModelPlan& plan() const {
    return plan_;
  }
  std::int64_t parameter_count() const;
  /// Multiply-adds of a forward pass over one sequence of that length; not a number for methods of the zoo, whose
  /// operations nobody counts.
  double operations(double length) const;

  /// One safetensors file with all that prediction needs: weights, configuration, encoding, statistics.
  void save(const std::filesystem::path& path) const;
  /// From such a file, or from a run's folder that holds `model.safetensors`.
  static Model load(const std::filesystem::path& path);
  /// All but the weights.
  static ModelPlan read_plan(const std::filesystem::path& path);
  /// Copies the weights of a trained model. With `new_head`, the head keeps its fresh weights; otherwise the classes
  /// must be the same. Symbols, channels and sizes must agree.
  void take_weights(const std::filesystem::path& path, bool new_head);

 private:
  ModelPlan plan_;
  std::shared_ptr<torch::nn::Module> module_;
};

/// The best model of a run.
inline constexpr const char* kModelFile = "model.safetensors";

}  // namespace dba::train

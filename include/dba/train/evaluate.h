#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dba/train/metrics.h"
#include "dba/train/model.h"

namespace dba::train {

/// Logits (B, classes) of a batch on the model's device; the caller has set evaluation mode. A model trained in
/// bfloat16 runs in it on a GPU.
at::Tensor infer(Model& model, const Batch& batch, at::Device device);

/// 0 … size − 1.
std::vector<std::size_t> all_examples(const data::CachedSet& set);

class ResidentSet;

/// Runs the model, in evaluation mode, over examples of a set. `done` is told how many are done. on_device: the set
/// where it lies on the device already; otherwise it goes there if the configuration says so.
Metrics evaluate(Model& model, const data::CachedSet& set, std::span<const std::size_t> examples, at::Device device,
                 const std::function<void(std::size_t)>& done = {}, const ResidentSet* on_device = nullptr);

/// The set of a file, encoded as the model's training data were, through a cache file. `format`: instead of that of the
/// training data; empty: by the file's extension.
data::CachedSet open_set(const ModelPlan& plan, const std::filesystem::path& file, const std::filesystem::path& cache,
                         const std::optional<std::string>& format = std::nullopt);

/// How the configuration says that files are to be read.
data::ReaderOptions reader_options(const config::DataConfig& data);

/// "auto" is a GPU where there is one.
at::Device choose_device(const std::string& name);

}  // namespace dba::train

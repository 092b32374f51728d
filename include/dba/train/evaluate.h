#pragma once

#include <functional>
#include <span>

#include "dba/train/metrics.h"
#include "dba/train/model.h"

namespace dba::train {

/// Runs the model, in evaluation mode, over examples of a set. `examples` empty: all of them. `done` is told how many
/// are done.
Metrics evaluate(Model& model, const data::CachedSet& set, std::span<const std::size_t> examples, at::Device device,
                 const std::function<void(std::size_t)>& done = {});

/// The set of a file, encoded as the model's training data were, through a cache file.
data::CachedSet open_set(const ModelPlan& plan, const std::filesystem::path& file, const std::filesystem::path& cache);

/// How the configuration says that files are to be read.
data::ReaderOptions reader_options(const config::DataConfig& data);

/// "auto" is a GPU where there is one.
at::Device choose_device(const std::string& name);

}  // namespace dba::train

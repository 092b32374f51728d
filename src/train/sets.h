#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dba/config/train_config.h"
#include "dba/train/model.h"

namespace dba::train {

/// The data of a run. The test part is opened when it is needed, after training.
struct Sets {
  ModelPlan plan;
  data::CachedSet train;
  std::vector<std::size_t> train_examples;
  /// Absent: the validation examples are held out of the training part.
  std::optional<data::CachedSet> validation;
  std::vector<std::size_t> validation_examples;
  /// "a held-out part of the training file", "the file …", "the test file (as published)".
  std::string validation_source;
  std::string test_file;
  std::filesystem::path cache;

  const data::CachedSet& validation_set() const {
    return validation ? *validation : train;
  }
};

/// Reads or builds the caches. `say` hears of what was done. Under protocol `as_published` the test file chooses the
/// model; under `honest` only its beginning is looked at, to find a wrong path before training and not after.
/// With train.init_from, symbols and the longest sequence are those of that model; they are kept in the run's folder,
/// from which a resumed run takes them.
Sets open_sets(const config::TrainConfig& config, const std::filesystem::path& folder, bool resume,
               const std::function<void(const std::string&)>& say);

}  // namespace dba::train

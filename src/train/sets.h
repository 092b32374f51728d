#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dba/config/train_config.h"
#include "dba/train/model.h"

namespace dba::train {

/// The data of a run.
struct Sets {
  ModelPlan plan;
  data::CachedSet train;
  std::vector<std::size_t> train_examples;
  /// Absent: the validation examples are held out of the training part.
  std::optional<data::CachedSet> validation;
  /// None: protocol `last_epoch` on the whole training file.
  std::vector<std::size_t> validation_examples;
  /// "a part held out of the training file", "the file …", "the test file, as published", "nothing: …".
  std::string chosen_on;
  std::optional<data::CachedSet> test;
  /// Listed by the training file's header, without an example.
  std::vector<std::string> classes_without_examples;

  const data::CachedSet& validation_set() const {
    return validation ? *validation : train;
  }
};

/// Examples over classes and over the class's own examples, of each class: with such weights all classes count alike.
std::vector<float> balanced_class_weights(const Sets& sets);

/// Reads or builds the caches, that of the test file too, so that what is wrong with it is found before training and
/// not after. `say` hears of what was done. Under protocol `as_published` the test file chooses the model. With
/// train.init_from, symbols and the longest sequence are those of that model; they are kept in the run's folder, from
/// which a resumed run takes them.
Sets open_sets(const config::TrainConfig& config, const std::filesystem::path& folder, bool resume,
               const std::function<void(const std::string&)>& say);

}  // namespace dba::train

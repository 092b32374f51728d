#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "reproduce/experiment.h"
#include "reproduce/result.h"

/// What a run was made with, beside what its recipe says: a trial must never be taken for the recipe.
namespace dba::reproduce {

/// Those of a run's settings that are not its recipe's, as --set takes them (model.layers=1), in the order of
/// docs/config.md. The recipe is the file run.config below `configs` with run.overrides above it. What leaves the model
/// as it is (seed and device, the place of the data, checkpoints, messages) is no part of it, and a key that `config`
/// lacks had its default. `config`: all settings as JSON, the data named as a result names them. FileError or
/// FormatError for a recipe that cannot be read.
std::vector<std::string> changed_settings(const Run& run, const std::string& config,
                                          const std::filesystem::path& configs);

/// Those of a finished run's settings that `overrides` would have made others, with the values they have.
std::vector<std::string> not_as_wanted(const Run& run, const std::string& config, const std::filesystem::path& configs,
                                       std::span<const std::string> overrides);

/// Notes in every result what of its settings is not the recipe's as it is now: a recipe that has changed since a
/// result was made must not let it be averaged with later ones. Where the recipe cannot be read, what the result says
/// of itself stands; where that says nothing either, a sentence that names the recipe and the results is returned.
std::vector<std::string> compare_with_recipes(const Experiment& experiment, std::span<Result> results,
                                              const std::filesystem::path& configs);

}  // namespace dba::reproduce

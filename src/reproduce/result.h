#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reproduce/experiment.h"
#include "reproduce/places.h"

namespace dba::reproduce {

/// What a table needs to know of a finished run, out of results/<experiment>/<run>.json.
struct Result {
  std::string task, method, variant;
  std::int64_t seed = 0;
  std::map<std::string, double> accuracy;  ///< test accuracy by protocol, a fraction
  double seconds = 0;
  std::string commit, device;
  std::vector<std::pair<std::string, std::string>> machine;
  std::int64_t training_examples = 0;
  /// Part → digest of its data (data::CachedSet::digest); empty: a result from before there were any.
  std::map<std::string, std::string> data;
  std::string file;    ///< its name
  std::string config;  ///< all settings as JSON
  /// Those that are not the recipe's, as --set takes them; the recipe's own run has an empty list. Nothing: a result
  /// from before they were kept, and nobody has compared it (compare_with_recipes).
  std::optional<std::vector<std::string>> changed;
};

/// The most points that a curve of a result keeps.
inline constexpr std::size_t kCurvePoints = 200;

/// Makes the result of a run out of its folder (report.json, config.yaml, metrics.jsonl) and writes it as JSON:
///   experiment, run, task, method, variant, seed, commit, version, device, machine, seconds, seconds_per_update,
///   share_of_time: {part: fraction}, updates, best_update,
///   protocols: {protocol: {update, accuracy, macro_f1, loss, examples, confusion}}, validation, classes, parameters,
///   data_digests: {training, validation, test: digest}, changed: [key=value, …], config: {section: {key: value}},
///   curves: {train, validation, test: {step: […], loss: […], accuracy: […]}}
/// Curves are thinned to kCurvePoints. Throws FormatError for a folder without a whole report.
Result write_result(const Experiment& experiment, const Run& run, const Places& places,
                    std::span<const std::pair<std::string, std::string>> machine);

/// What is wrong with the report of a run's folder, in a few words, where no result can be made from it; empty for a
/// whole one and for a folder that has none.
std::string report_fault(const std::filesystem::path& run_folder);

/// FormatError, naming the file, for what write_result has not written.
Result read_result(const std::filesystem::path& file);

/// All results of a folder, by the order of their files' names; none for a folder that is not there. Only files that
/// end in .json are looked at. What is wrong with files that cannot be read goes to `left_out`, a sentence each;
/// without it the first of them is thrown.
std::vector<Result> read_results(const std::filesystem::path& folder, std::vector<std::string>* left_out = nullptr);

}  // namespace dba::reproduce

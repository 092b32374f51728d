#include "reproduce/result.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "dba/bytes/atomic_write.h"
#include "dba/bytes/errors.h"
#include "dba/bytes/mapped_file.h"
#include "dba/config/config_file.h"
#include "reproduce/settings.h"
#include "run/folders.h"

namespace dba::reproduce {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kReport = "report.json";

std::string text_of(const std::filesystem::path& file) {
  const bytes::MappedFile mapped(file);
  return {reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()};
}

Json parse(const std::filesystem::path& file) {
  auto json = Json::parse(text_of(file), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    throw bytes::FormatError(file.string() + ": expected a JSON object; delete the file and run it again");
  return json;
}

/// At most kCurvePoints indices below `count`, evenly spread, first and last among them.
std::vector<std::size_t> thinned(std::size_t count) {
  std::vector<std::size_t> indices;
  const std::size_t points = std::min(count, kCurvePoints);
  for (std::size_t i = 0; i < points; ++i)
    indices.push_back(points < 2 ? 0 : (i * (count - 1) + (points - 1) / 2) / (points - 1));
  return indices;
}

// Four digits are more than a picture shows.
Json rounded(const Json& value) {
  if (!value.is_number_float())
    return value;
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value.get<double>());
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

Json curves_of(const std::filesystem::path& metrics) {
  std::map<std::string, std::vector<Json>> lines;
  const std::string text = text_of(metrics);
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    auto line = Json::parse(text.substr(begin, end - begin), nullptr, /*allow_exceptions=*/false);
    if (line.is_object() && line.contains("part"))
      lines[line["part"].get<std::string>()].push_back(std::move(line));
    begin = end + 1;
  }
  Json curves = Json::object();
  for (const auto& [part, points] : lines) {
    for (const std::size_t i : thinned(points.size()))
      for (const char* key : {"step", "loss", "accuracy"})
        curves[part][key].push_back(rounded(points[i].value(key, Json())));
  }
  return curves;
}

/// By protocol, out of a report that has several or, without train.watch_test, the one of the configuration.
Json protocols_of(const Json& report) {
  if (report.contains("protocols"))
    return report["protocols"];
  Json one = report.value("test", Json::object());
  one["update"] = report.value("best_update", Json());
  return {{report.at("protocol").get<std::string>(), one}};
}

const std::string& data_path(const config::DataConfig& data, const std::string& key) {
  return key == "data.train" ? data.train : key == "data.validation" ? data.validation : data.test;
}

/// Of names with | between, the one that the path ends in; the file's own name where it is none of them, as a cache's.
std::string found_name(const std::string& names, const std::filesystem::path& path) {
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, '|');)
    if (path.string().ends_with(name))
      return name;
  return path.filename().string();
}

/// The settings, with the names of the data below the data folder: where that lay is nobody's business.
Json config_of(const Run& run, const std::filesystem::path& file) {
  auto config = config::load_config(file);
  config.data.cache.clear();
  for (const auto& [key, names] : run.data)
    config::apply_override(config, key + "=" + found_name(names, data_path(config.data, key)));
  return Json::parse(config::to_json(config));
}

/// What a result keeps of a report.
Json kept_of(const Json& report) {
  Json kept;
  for (const char* key : {"commit", "version", "torch", "device", "threads", "precision", "seconds", "updates",
                          "best_update", "parameters", "training_examples", "model_chosen_on"})
    kept[key] = report.at(key);
  if (kept["model_chosen_on"].get<std::string>().starts_with("the file "))
    kept["model_chosen_on"] = "the validation file";
  kept["protocols"] = protocols_of(report);
  for (const char* key : {"validation", "classes", "repairs", "data_digests", "seconds_per_update", "share_of_time"})
    if (report.contains(key))
      kept[key] = report[key];
  return kept;
}

/// The other way round.
void read_kept(const Json& kept, Result& result) {
  result.seconds = kept.at("seconds").get<double>();
  result.commit = kept.at("commit").get<std::string>();
  result.device = kept.at("device").get<std::string>();
  result.training_examples = kept.at("training_examples").get<std::int64_t>();
  for (const auto& [protocol, metrics] : kept.at("protocols").items())
    if (metrics.contains("accuracy")) {
      const double accuracy = metrics["accuracy"].get<double>();
      if (!(accuracy >= 0 && accuracy <= 1))
        throw bytes::FormatError("accuracy must be from 0 to 1, got " + metrics["accuracy"].dump());
      result.accuracy[protocol] = accuracy;
    }
  if (kept.contains("data_digests"))
    result.data = kept["data_digests"].get<std::map<std::string, std::string>>();
}

/// A line per member, so that a difference between two results can be read.
std::string lines_of(const Json& object) {
  std::string text;
  for (const auto& [key, value] : object.items())
    text += (text.empty() ? "{\n" : ",\n") + Json(key).dump() + ": " + value.dump();
  return text + "\n}\n";
}

}  // namespace

Result write_result(const Experiment& experiment, const Run& run, const Places& places,
                    std::span<const std::pair<std::string, std::string>> machine) {
  const auto folder = places.run_folder(run);
  Json result{{"experiment", experiment.name}, {"run", run.name()},      {"task", run.task},
              {"method", run.method},          {"variant", run.variant}, {"seed", run.seed}};
  if (const std::string fault = report_fault(folder); !fault.empty())
    throw bytes::FormatError((folder / kReport).string() + ": damaged (" + fault + "); give the same command again");
  result.update(kept_of(parse(folder / kReport)));
  for (const auto& [name, value] : machine)
    result["machine"][name] = value;
  const Json config = config_of(run, folder / "config.yaml");
  try {
    result["changed"] = changed_settings(run, config.dump(), places.configs);
  } catch (const std::exception&) {
    // A recipe that cannot be read is no reason to lose a finished run; the page compares it again, or says so.
  }
  result["config"] = config;
  result["curves"] = curves_of(folder / "metrics.jsonl");
  const std::string text = lines_of(result);
  const std::array parts = {std::as_bytes(std::span(text))};
  const auto file = places.result(run);
  bytes::atomic_write(file, parts);
  return read_result(file);
}

std::string report_fault(const std::filesystem::path& run_folder) {
  const auto file = run_folder / kReport;
  if (!run::is_there(file))
    return "";
  try {
    const Json report = Json::parse(text_of(file), nullptr, /*allow_exceptions=*/false);
    if (!report.is_object())
      return "expected a JSON object";
    Result result;
    read_kept(kept_of(report), result);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

Result read_result(const std::filesystem::path& file) {
  const Json json = parse(file);
  try {
    Result result;
    result.task = json.at("task").get<std::string>();
    result.method = json.at("method").get<std::string>();
    result.variant = json.at("variant").get<std::string>();
    result.seed = json.at("seed").get<std::int64_t>();
    result.file = file.filename().string();
    result.config = json.at("config").dump();
    read_kept(json, result);
    // A copy under another name would count as one more seed.
    Run own;
    own.task = result.task, own.method = result.method, own.variant = result.variant, own.seed = result.seed;
    if (result.file != own.name() + ".json")
      throw bytes::FormatError("it holds the result of the run " + own.name());
    if (json.contains("changed"))
      result.changed = json["changed"].get<std::vector<std::string>>();
    if (json.contains("machine"))
      for (const auto& [name, value] : json["machine"].items())
        result.machine.emplace_back(name, value.get<std::string>());
    return result;
  } catch (const nlohmann::json::exception& error) {
    throw bytes::FormatError(file.string() + ": not a result of dba reproduce (" + error.what() +
                             "); delete it and run it again");
  } catch (const bytes::FormatError& error) {
    throw bytes::FormatError(file.string() + ": " + error.what() + "; delete it and run it again");
  }
}

std::vector<Result> read_results(const std::filesystem::path& folder, std::vector<std::string>* left_out) {
  auto names = run::names_in(folder);
  std::ranges::sort(names);
  std::vector<Result> results;
  for (const std::string& name : names) {
    if (!name.ends_with(".json") || name.starts_with("."))
      continue;
    try {
      results.push_back(read_result(folder / name));
    } catch (const std::exception& error) {
      if (left_out == nullptr)
        throw;
      left_out->emplace_back(error.what());
    }
  }
  return results;
}

}  // namespace dba::reproduce

#include "reproduce/efficiency.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "dba/bytes/atomic_write.h"
#include "dba/bytes/errors.h"
#include "reproduce/paper_lra.h"
#include "run/folders.h"

namespace dba::reproduce {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

Json ratio_json(const std::optional<double>& ratio) {
  return ratio ? Json(*ratio) : Json();
}

Json cell_json(const EfficiencyResults& results, const EfficiencyCell& cell) {
  Json json = {{"method", cell.method}, {"length", cell.length}, {"pass", cell.pass}, {"status", cell.status}};
  if (cell.build != results.fact("dba")) {
    json["build"] = cell.build;
  }
  if (!cell.measured()) {
    json["reason"] = cell.reason;
    return json;
  }
  json.update({{"seconds", cell.seconds},
               {"q1_seconds", cell.low},
               {"q3_seconds", cell.high},
               {"samples", cell.samples},
               {"clock", cell.clock},
               {"peak_bytes", cell.bytes},
               {"speed_vs_unfused", ratio_json(speed_ratio(results, cell, kUnfused))},
               {"speed_vs_fused", ratio_json(speed_ratio(results, cell, kFused))},
               {"memory_vs_unfused", ratio_json(memory_ratio(results, cell, kUnfused))},
               {"memory_vs_fused", ratio_json(memory_ratio(results, cell, kFused))}});
  return json;
}

/// `build`: what the file says of all cells that say nothing themselves.
EfficiencyCell cell_of(const Json& json, const std::string& build) {
  EfficiencyCell cell;
  cell.build = json.value("build", build);
  cell.method = json.at("method");
  cell.length = json.at("length");
  cell.pass = json.at("pass");
  cell.status = json.at("status");
  if (!cell.measured()) {
    cell.reason = json.at("reason");
    return cell;
  }
  cell.seconds = json.at("seconds");
  cell.low = json.at("q1_seconds");
  cell.high = json.at("q3_seconds");
  cell.samples = json.at("samples");
  cell.clock = json.at("clock");
  cell.bytes = json.at("peak_bytes");
  return cell;
}

/// The paper's mean over the tasks of Long-Range Arena for every method that it has there.
Json paper_averages() {
  std::map<std::string, std::pair<double, int>> sums;
  for (const auto& figure : paper_lra_figures()) {
    sums[figure.method].first += figure.accuracy;
    sums[figure.method].second += 1;
  }
  Json averages = Json::object();
  for (const auto& [method, sum] : sums) {
    averages[method] = sum.first / sum.second;
  }
  return averages;
}

}  // namespace

std::string EfficiencyResults::fact(const std::string& wanted) const {
  for (const auto& [name, value] : machine) {
    if (name == wanted) {
      return value;
    }
  }
  return "";
}

const EfficiencyCell* EfficiencyResults::find(const std::string& method, std::int64_t length,
                                              const std::string& pass) const {
  const auto found = std::find_if(cells.begin(), cells.end(), [&](const EfficiencyCell& cell) {
    return cell.method == method && cell.length == length && cell.pass == pass;
  });
  return found == cells.end() ? nullptr : &*found;
}

void EfficiencyResults::put(EfficiencyCell cell) {
  cell.build = fact("dba");
  if (const auto* old = find(cell.method, cell.length, cell.pass)) {
    cells[static_cast<std::size_t>(old - cells.data())] = std::move(cell);
  } else {
    cells.push_back(std::move(cell));
  }
}

void EfficiencyResults::put_options(const std::string& method, const std::string& values) {
  const auto known = std::ranges::find(options, method, [](const auto& option) { return option.first; });
  if (known != options.end()) {
    known->second = values;
  } else if (!values.empty()) {
    options.emplace_back(method, values);
  }
}

bool EfficiencyResults::comparable(const EfficiencyResults& other) const {
  const auto key = [](const EfficiencyResults& r) {
    return std::tuple(r.fact(r.device == "cpu" ? "CPU" : "GPU"), r.fact("threads"), r.fact("torch"), r.device, r.dtype,
                      r.batch, r.d, r.heads, r.d_ffn, r.layers);
  };
  return key(*this) == key(other);
}

std::vector<std::string> efficiency_methods(bool on_gpu) {
  std::vector<std::string> methods = {kUnfused, kFused};
  if (on_gpu) {
    methods.insert(methods.end(), {"softmax:flash", "softmax:cudnn"});
  }
  for (const char* name :
       {"dba",           "dba:released", "local",       "sparse", "longformer", "bigbird",   "linformer",
        "reformer",      "sinkhorn",     "synthesizer", "linear", "performer",  "cosformer", "fnet",
        "nystromformer", "scatterbrain", "pixelfly",    "luna",   "flowformer", "yoso"}) {
    methods.emplace_back(name);
  }
  return methods;
}

std::optional<double> speed_ratio(const EfficiencyResults& results, const EfficiencyCell& cell, const char* baseline) {
  const auto* base = results.find(baseline, cell.length, cell.pass);
  if (!cell.measured() || base == nullptr || !base->measured()) {
    return std::nullopt;
  }
  return base->seconds / cell.seconds;
}

std::optional<double> memory_ratio(const EfficiencyResults& results, const EfficiencyCell& cell, const char* baseline) {
  const auto* base = results.find(baseline, cell.length, cell.pass);
  if (!cell.measured() || base == nullptr || !base->measured()) {
    return std::nullopt;
  }
  return static_cast<double>(cell.bytes) / static_cast<double>(base->bytes);
}

std::string efficiency_list(const EfficiencyResults& results, const std::vector<std::string>& methods,
                            const std::vector<std::int64_t>& lengths) {
  constexpr int kNameWidth = 16;
  std::string text;
  for (const auto& method : methods) {
    std::size_t measured = 0;
    std::string missing;
    for (const char* pass : {"training", "inference"}) {
      for (const auto length : lengths) {
        const auto* cell = results.find(method, length, pass);
        if (cell != nullptr && cell->measured()) {
          ++measured;
          continue;
        }
        missing += std::string(missing.empty() ? "; without: " : ", ") + pass + " " + std::to_string(length) +
                   (cell == nullptr ? "" : " (" + cell->status + ")");
      }
    }
    auto name = method;
    name.resize(std::max<std::size_t>(name.size(), kNameWidth), ' ');
    text += name + " " + std::to_string(measured) + " of " + std::to_string(2 * lengths.size()) + " figures" + missing +
            "\n";
  }
  return text;
}

std::optional<EfficiencyResults> read_efficiency(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) {
    return std::nullopt;
  }
  try {
    const auto json = Json::parse(stream);
    if (json.at("dba_efficiency") != kFormat) {
      throw bytes::FormatError(file.string() +
                               ": of another version of the program; name another --results, or remove the file");
    }
    EfficiencyResults results;
    for (const auto& [name, value] : json.at("machine").items()) {
      results.machine.emplace_back(name, value);
    }
    results.device = json.at("device");
    results.dtype = json.at("dtype");
    results.batch = json.at("batch");
    const auto& model = json.at("model");
    results.d = model.at("d");
    results.heads = model.at("heads");
    results.d_ffn = model.at("d_ffn");
    results.layers = model.at("layers");
    const auto options = json.value("options", Json::object());
    for (const auto& [method, values] : options.items()) {
      results.options.emplace_back(method, values);
    }
    for (const auto& cell : json.at("cells")) {
      results.cells.push_back(cell_of(cell, results.fact("dba")));
    }
    return results;
  } catch (const Json::exception& error) {
    throw bytes::FormatError(file.string() + ": no result of dba reproduce efficiency: " + error.what());
  }
}

void write_efficiency(const std::filesystem::path& file, const EfficiencyResults& results) {
  Json machine = Json::object(), options = Json::object(), cells = Json::array();
  for (const auto& [name, value] : results.machine) {
    machine[name] = value;
  }
  for (const auto& [method, values] : results.options) {
    options[method] = values;
  }
  for (const auto& cell : results.cells) {
    cells.push_back(cell_json(results, cell));
  }
  const Json json = {
      {"dba_efficiency", kFormat},
      {"machine", machine},
      {"device", results.device},
      {"dtype", results.dtype},
      {"batch", results.batch},
      {"model", {{"d", results.d}, {"heads", results.heads}, {"d_ffn", results.d_ffn}, {"layers", results.layers}}},
      {"options", options},
      {"lra_average", {{"source", "paper"}, {"percent", paper_averages()}}},
      {"cells", cells}};
  const auto text = json.dump(1) + "\n";
  bytes::atomic_write(file, [&](bytes::OutputFile& output) { output.write(std::as_bytes(std::span(text))); });
}

}  // namespace dba::reproduce

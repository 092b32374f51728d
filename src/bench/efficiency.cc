#include "bench/efficiency.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "bench/measure.h"
#include "dba/zoo.h"

namespace dba::bench {
namespace {

using reproduce::EfficiencyCell;
using reproduce::EfficiencyResults;

/// Learned maps between all positions are drawn on the host and trained: beyond this they are no text classifier.
constexpr double kMostParameters = 5e8;
/// The comparisons with float64: so many tokens of the sequences at the shortest length, and at the first one that has
/// as many as the second.
constexpr int64_t kFirstCheck = 256, kSecondCheck = 1024;

const char* name_of(Pass pass) {
  return pass == Pass::step ? "training" : "inference";
}

EfficiencyCell cell_of(const Result& result) {
  EfficiencyCell cell;
  cell.method = result.method;
  cell.length = result.one.length;
  cell.pass = name_of(result.pass);
  cell.status = to_string(result.status);
  cell.reason = result.reason;
  cell.clock = result.clock;
  if (result.status == Status::ok) {
    // Adam keeps two numbers beside each parameter; gradients come and go within the step.
    const int64_t held = (result.pass == Pass::step ? 3 : 1) * result.parameter_bytes;
    cell.seconds = result.seconds.median;
    cell.low = result.seconds.low;
    cell.high = result.seconds.high;
    cell.samples = result.samples;
    cell.bytes = result.memory.tensors + held;
  }
  return cell;
}

/// What the method's attention is made with, but for the longest sequence: "window=512, globals=1".
std::string options_of(const Method& method, const Sizes& sizes) {
  const auto* member = member_of(method);
  if (member == nullptr) {
    return "";
  }
  auto values = zoo::parse_values(method.options);
  for (const auto& option : member->options) {
    values.emplace(option.name, option.fallback);
  }
  values.erase("max_length");
  if (method.is_dba()) {
    values.emplace("d_in", std::to_string(sizes.d_in));
  }
  if (member->capabilities.slots) {
    values.emplace("d_p", std::to_string(sizes.d_p));
  }
  std::string text;
  for (const auto& [name, value] : values) {
    text += (text.empty() ? "" : ", ") + name + "=" + value;
  }
  return text;
}

/// Parameters of learned n × n maps, of all layers.
double map_parameters(const Method& method, int64_t length, const Sizes& sizes) {
  const auto* member = member_of(method);
  const bool maps = member != nullptr && member->capabilities.learned_per_position &&
                    member->capabilities.growth == zoo::Growth::quadratic &&
                    method.options.find("factorised") == std::string::npos &&
                    method.options.find("dense") == std::string::npos;
  const auto n = static_cast<double>(length);
  return maps ? static_cast<double>(sizes.depth * sizes.heads) * n * n : 0.0;
}

class CellByCell {
 public:
  CellByCell(const EfficiencyOptions& options, EfficiencyResults& results) : options_(options), results_(results) {
    settings_.kind = Kind::train_step;
    settings_.device = at::Device(options.device);
    settings_.sizes.d = results.d;
    settings_.sizes.heads = results.heads;
    settings_.sizes.d_ffn = results.d_ffn;
    settings_.sizes.depth = results.layers;
    settings_.repeats = options.repeats;
    settings_.seconds = options.seconds;
    watcher_.stop = options.stop;
  }

  void describe(const Method& method) {
    results_.put_options(method.name, options_of(method, settings_.sizes));
  }

  /// The passes of a method at a length that are still to be measured.
  void measure_missing(const Method& method, int64_t length) {
    settings_.passes.clear();
    for (const auto pass : {Pass::forward, Pass::step}) {
      const auto* old = results_.find(method.name, length, name_of(pass));
      const bool outdated = old != nullptr && options_.retake && old->build != results_.fact("dba");
      if (old != nullptr && old->measured() && !outdated) {
        continue;
      }
      if (const auto reason = reason_to_skip(method, length, pass); !reason.empty()) {
        EfficiencyCell cell;
        cell.method = method.name;
        cell.length = length;
        cell.pass = name_of(pass);
        cell.status = "skipped";
        cell.reason = reason;
        put(std::move(cell));
        continue;
      }
      settings_.passes.push_back(pass);
    }
    if (settings_.passes.empty()) {
      return;
    }
    settings_.methods = {method};
    settings_.cases = {{length, options_.batch, parse_precision(options_.dtype), at::get_num_threads()}};
    settings_.check_length = length == second_check_ ? kSecondCheck : length == first_check_ ? kFirstCheck : 0;
    for (const auto& result : measure(settings_, watcher_)) {
      put(cell_of(result));
    }
  }

  /// lengths: from the shortest to the longest.
  void set_checks(const std::vector<int64_t>& lengths) {
    first_check_ = lengths.front();
    const auto second = std::ranges::lower_bound(lengths, kSecondCheck);
    second_check_ = second == lengths.end() ? 0 : *second;
  }

 private:
  std::string reason_to_skip(const Method& method, int64_t length, Pass pass) const {
    if (const auto parameters = map_parameters(method, length, settings_.sizes); parameters > kMostParameters) {
      return "its learned maps would have " + std::to_string(std::llround(parameters / 1e6)) + " million parameters";
    }
    for (const auto& cell : results_.cells) {
      if (cell.method != method.name || cell.pass != name_of(pass) || cell.length >= length) {
        continue;
      }
      if (cell.status == "wrong") {
        return "its numbers are wrong at n = " + std::to_string(cell.length);
      }
      if (cell.measured() && cell.seconds > options_.longest_call) {
        char text[160];
        std::snprintf(text, sizeof text,
                      "a call took %.2g s at n = %lld already, longer than the %.2g s of --longest-call", cell.seconds,
                      static_cast<long long>(cell.length), options_.longest_call);
        return text;
      }
    }
    return "";
  }

  void put(EfficiencyCell cell) {
    if (cell.status == "stopped") {
      return;
    }
    if (!cell.measured()) {
      options_.say(cell.method + ", " + cell.pass + ", n = " + std::to_string(cell.length) + ": " + cell.status + ": " +
                   cell.reason);
    }
    results_.put(std::move(cell));
  }

  const EfficiencyOptions& options_;
  EfficiencyResults& results_;
  Settings settings_;
  Watcher watcher_;
  int64_t first_check_ = 0, second_check_ = 0;
};

}  // namespace

bool measure_efficiency(const EfficiencyOptions& options, EfficiencyResults& results,
                        const std::function<void()>& save) {
  std::vector<Method> methods;
  for (const auto& name : options.methods) {
    methods.push_back(parse_method(name));
  }
  auto lengths = options.lengths;
  std::sort(lengths.begin(), lengths.end());
  CellByCell measurement(options, results);
  measurement.set_checks(lengths);
  for (const auto& method : methods) {
    measurement.describe(method);
  }
  const auto total = static_cast<int64_t>(methods.size() * lengths.size());
  int64_t done = 0;
  for (const auto length : lengths) {
    for (const auto& method : methods) {
      if (options.stop()) {
        return false;
      }
      measurement.measure_missing(method, length);
      save();
      if (!options.stop()) {
        options.progress(++done, total);
      }
    }
  }
  return !options.stop();
}

}  // namespace dba::bench

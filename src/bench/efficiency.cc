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
/// The comparison with float64.
constexpr int64_t kCheckLength = 256;

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

/// Parameters of learned n × n maps, of all layers.
double map_parameters(const Method& method, int64_t length, const Sizes& sizes) {
  const auto& capabilities = zoo::member(method.attention).capabilities;
  const bool maps = capabilities.learned_per_position && capabilities.growth == zoo::Growth::quadratic &&
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

  /// The passes of a method at a length that are still to be measured.
  void measure_missing(const Method& method, int64_t length) {
    settings_.passes.clear();
    for (const auto pass : {Pass::forward, Pass::step}) {
      const auto* old = results_.find(method.name, length, name_of(pass));
      if (old != nullptr && old->measured()) {
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
    settings_.check_length = length == shortest_ ? kCheckLength : 0;
    for (const auto& result : measure(settings_, watcher_)) {
      put(cell_of(result));
    }
  }

  void set_shortest(int64_t length) {
    shortest_ = length;
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
  int64_t shortest_ = 0;
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
  measurement.set_shortest(lengths.front());
  const auto total = static_cast<int64_t>(methods.size() * lengths.size());
  int64_t done = 0;
  for (const auto length : lengths) {
    for (const auto& method : methods) {
      if (options.stop()) {
        return false;
      }
      measurement.measure_missing(method, length);
      save();
      options.progress(++done, total);
    }
  }
  return !options.stop();
}

}  // namespace dba::bench

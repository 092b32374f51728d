#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/report.h"

namespace dba::bench {
namespace {

using Json = nlohmann::ordered_json;

/// Raised when a reader of older files would misunderstand a newer one.
constexpr int kFormat = 1;

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

Json count(int64_t value) {
  return value < 0 ? Json() : Json(value);
}

Json settings_json(const Settings& settings) {
  const auto& sizes = settings.sizes;
  Json methods = Json::array();
  for (const auto& method : settings.methods) {
    methods.push_back(method.name);
  }
  return {{"device", settings.device.str()},
          {"methods", methods},
          {"baselines", settings.baselines},
          {"d", sizes.d},
          {"heads", sizes.heads},
          {"d_p", sizes.d_p},
          {"d_in", sizes.d_in},
          {"d_ffn", sizes.d_ffn},
          {"depth", sizes.depth},
          {"dropout", sizes.dropout},
          {"slots_per_sequence", sizes.slots_per_sequence},
          {"repeats", settings.repeats},
          {"seconds", settings.seconds}};
}

Json result_json(const Result& result, const Settings& settings) {
  constexpr double kMilli = 1e3;
  const bool compared = result.verdict.length > 0;
  Json ratios = Json::object();
  for (size_t i = 0; i < result.ratios.size(); ++i) {
    ratios[settings.baselines[i]] = number(result.ratios[i]);
  }
  return {{"method", result.method},
          {"length", result.one.length},
          {"batch", result.one.batch},
          {"dtype", to_string(result.one.precision)},
          {"threads", result.one.threads},
          {"pass", to_string(result.pass)},
          {"cache", to_string(result.cache)},
          {"status", to_string(result.status)},
          {"reason", result.reason.empty() ? Json() : Json(result.reason)},
          {"median_ms", number(kMilli * result.seconds.median)},
          {"q1_ms", number(kMilli * result.seconds.low)},
          {"q3_ms", number(kMilli * result.seconds.high)},
          {"samples", result.samples},
          {"calls_per_sample", result.calls_per_sample},
          {"clock", result.clock.empty() ? Json() : Json(result.clock)},
          {"peak_bytes", count(result.memory.tensors)},
          {"peak_resident_bytes", count(result.memory.resident)},
          {"operations", number(result.cost.operations)},
          {"bytes", number(result.cost.bytes)},
          {"output_error", compared ? number(result.verdict.output_error) : Json()},
          {"gradient_error", compared ? number(result.verdict.gradient_error) : Json()},
          {"checked_length", compared ? Json(result.verdict.length) : Json()},
          {"times_faster_than", ratios}};
}

}  // namespace

std::string to_json(const Report& report) {
  Json machine = Json::object();
  for (const auto& [name, value] : report.machine) {
    machine[name] = value;
  }
  Json results = Json::array();
  for (const auto& result : report.results) {
    results.push_back(result_json(result, report.settings));
  }
  const Json all = {{"dba_bench", kFormat}, {"kind", to_string(report.settings.kind)},    {"complete", report.complete},
                    {"machine", machine},   {"settings", settings_json(report.settings)}, {"results", results}};
  return all.dump(1) + "\n";
}

}  // namespace dba::bench

#include <cmath>
#include <cstdio>

#include "bench/report.h"

namespace dba::bench {
namespace {

std::string number(double value) {
  if (!std::isfinite(value)) {
    return "";
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string count(int64_t value) {
  return value < 0 ? "" : std::to_string(value);
}

/// In quotes where a comma, a quote or the end of a line would be misread.
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) {
    return text;
  }
  std::string quoted = "\"";
  for (const char c : text) {
    quoted += c;
    if (c == '"') {
      quoted += c;
    }
  }
  return quoted + "\"";
}

void add_line(std::string& text, const std::vector<std::string>& fields) {
  for (size_t i = 0; i < fields.size(); ++i) {
    text += (i == 0 ? "" : ",") + field(fields[i]);
  }
  text += "\n";
}

}  // namespace

std::string to_csv(const Report& report) {
  std::vector<std::string> heads = {"kind",
                                    "device",
                                    "dtype",
                                    "threads",
                                    "n",
                                    "batch",
                                    "pass",
                                    "cache",
                                    "method",
                                    "status",
                                    "median_ms",
                                    "q1_ms",
                                    "q3_ms",
                                    "samples",
                                    "calls_per_sample",
                                    "clock",
                                    "peak_bytes",
                                    "peak_resident_bytes",
                                    "operations",
                                    "bytes",
                                    "output_error",
                                    "gradient_error",
                                    "checked_length",
                                    "reason"};
  for (const auto& baseline : report.settings.baselines) {
    heads.push_back("times_faster_than_" + baseline);
  }
  std::string text;
  add_line(text, heads);
  constexpr double kMilli = 1e3;
  for (const auto& result : report.results) {
    const bool compared = result.verdict.length > 0;
    std::vector<std::string> fields = {to_string(report.settings.kind),
                                       report.settings.device.str(),
                                       to_string(result.one.precision),
                                       std::to_string(result.one.threads),
                                       std::to_string(result.one.length),
                                       std::to_string(result.one.batch),
                                       to_string(result.pass),
                                       to_string(result.cache),
                                       result.method,
                                       to_string(result.status),
                                       number(kMilli * result.seconds.median),
                                       number(kMilli * result.seconds.low),
                                       number(kMilli * result.seconds.high),
                                       std::to_string(result.samples),
                                       std::to_string(result.calls_per_sample),
                                       result.clock,
                                       count(result.memory.tensors),
                                       count(result.memory.resident),
                                       number(result.cost.operations),
                                       number(result.cost.bytes),
                                       compared ? number(result.verdict.output_error) : "",
                                       compared ? number(result.verdict.gradient_error) : "",
                                       compared ? std::to_string(result.verdict.length) : "",
                                       result.reason};
    for (const double ratio : result.ratios) {
      fields.push_back(number(ratio));
    }
    add_line(text, fields);
  }
  return text;
}

}  // namespace dba::bench

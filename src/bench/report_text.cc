#include <algorithm>
#include <cmath>
#include <cstdio>

#include "bench/report.h"
#include "bytes/count.h"

namespace dba::bench {
namespace {

using Row = std::vector<std::string>;

template <typename... Args>
std::string formatted(const char* format, Args... args) {
  char text[96];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

/// Four significant digits, without an exponent.
std::string short_number(double value) {
  if (!std::isfinite(value)) {
    return "-";
  }
  const int digits = value == 0 ? 0 : static_cast<int>(std::floor(std::log10(std::abs(value))));
  return formatted("%.*f", std::clamp(3 - digits, 0, 6), value);
}

std::string error_of(const Verdict& verdict) {
  const double worst = std::isnan(verdict.gradient_error) ? verdict.output_error
                                                          : std::max(verdict.output_error, verdict.gradient_error);
  return formatted("%.1e", worst);
}

Row cells_of(const Result& result) {
  constexpr double kMilli = 1e3;
  constexpr double kMega = 1e6;
  constexpr double kGiga = 1e9;
  Row row = {bytes::with_commas(result.one.length), bytes::with_commas(result.one.batch), result.method};
  if (result.status != Status::ok) {
    row.push_back(to_string(result.status));
    return row;
  }
  const auto& seconds = result.seconds;
  row.push_back(short_number(kMilli * seconds.median));
  row.push_back(short_number(kMilli * seconds.low));
  row.push_back(short_number(kMilli * seconds.high));
  for (const double ratio : result.ratios) {
    row.push_back(std::isfinite(ratio) ? formatted("%.2fx", ratio) : "-");
  }
  row.push_back(result.memory.tensors < 0 ? "-" : short_number(static_cast<double>(result.memory.tensors) / kMega));
  row.push_back(short_number(result.cost.operations / kGiga));
  row.push_back(short_number(result.cost.operations / seconds.median / kGiga));
  row.push_back(short_number(result.cost.bytes / seconds.median / kGiga));
  row.push_back(error_of(result.verdict));
  row.push_back(result.clock);
  return row;
}

Row heads_of(const Settings& settings) {
  Row heads = {"n", "batch", "method", "ms", "q1", "q3"};
  for (const auto& baseline : settings.baselines) {
    heads.push_back("vs " + baseline);
  }
  for (const char* name : {"peak MB", "GFLOP", "GFLOP/s", "GB/s", "error", "clock"}) {
    heads.emplace_back(name);
  }
  return heads;
}

std::string table(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  constexpr size_t kMethod = 2;  // the one column of words
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      line += (i == 0 ? "" : "  ") + (i == kMethod ? row[i] + space : space + row[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string title_of(const Result& result) {
  auto title = to_string(result.pass) + ", " + to_string(result.cache) + " cache, " + to_string(result.one.precision);
  return result.one.threads > 0 ? title + ", " + bytes::counted(result.one.threads, "thread") : title;
}

std::string description(const Settings& settings) {
  const auto& sizes = settings.sizes;
  auto text = to_string(settings.kind) + " on " + settings.device.str() +
              formatted(": d %lld, H %lld, d_p %lld, d_in %lld", static_cast<long long>(sizes.d),
                        static_cast<long long>(sizes.heads), static_cast<long long>(sizes.d_p),
                        static_cast<long long>(sizes.d_in));
  if (settings.kind == Kind::layer) {
    text += sizes.slots_per_sequence ? ", Z per sequence" : ", one Z";
  } else {
    text +=
        formatted(", d_ffn %lld, depth %lld", static_cast<long long>(sizes.d_ffn), static_cast<long long>(sizes.depth));
  }
  return text + formatted(", dropout %g", sizes.dropout);
}

}  // namespace

std::string to_text(const Report& report) {
  std::string text;
  for (const auto& [name, value] : report.machine) {
    text += formatted("%-9s ", name.c_str()) + value + "\n";
  }
  text += "\n" + description(report.settings) + "\n";
  std::vector<std::string> titles;
  for (const auto& result : report.results) {
    const auto title = title_of(result);
    if (std::find(titles.begin(), titles.end(), title) == titles.end()) {
      titles.push_back(title);
    }
  }
  for (const auto& title : titles) {
    std::vector<Row> rows = {heads_of(report.settings)};
    std::string reasons;
    for (const auto& result : report.results) {
      if (title_of(result) != title) {
        continue;
      }
      rows.push_back(cells_of(result));
      if (result.status != Status::ok) {
        reasons += "  " + result.method + " at n = " + bytes::with_commas(result.one.length) + " " +
                   to_string(result.status) + ": " + result.reason + "\n";
      } else if (result.verdict.length < result.one.length) {
        reasons += "  " + result.method + " at n = " + bytes::with_commas(result.one.length) +
                   " was checked at n = " + bytes::with_commas(result.verdict.length) + "\n";
      }
    }
    text += "\n" + title + "\n" + table(rows) + reasons;
  }
  if (!report.complete) {
    text += "\nstopped before the end\n";
  }
  return text;
}

}  // namespace dba::bench

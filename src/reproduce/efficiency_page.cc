#include <algorithm>
#include <cstdio>
#include <map>
#include <span>

#include "bytes/count.h"
#include "bytes/listed.h"
#include "dba/bytes/atomic_write.h"
#include "reproduce/efficiency.h"
#include "reproduce/paper_efficiency.h"
#include "run/folders.h"

namespace dba::reproduce {
namespace {

constexpr const char* kPreface = R"md(# Speed and memory

Table 2 and figure 1 of the paper, measured here: the Text model (a classifier of bytes) with each attention, everything
else the same. `dba reproduce efficiency` measures and writes this page; `dba plot efficiency` draws the figure from the
files beside it.

Speeds say how many times as fast as softmax attention at the same length, memory which share of its peak: more is better
in the first, less in the second. The yardstick is softmax attention in two forms: unfused, with its n × n map in memory,
as in the paper, and fused, as PyTorch computes it today without the map. Training is a step: forward, loss, backward,
optimiser, without dropout. Inference is a forward pass that keeps nothing. Memory is the most that was held at once:
parameters, in training what the optimiser keeps of them, gradients, and all that the call allocates. One method after the
other has the machine for itself.

Rows: `softmax:math` is the unfused softmax attention, `softmax` the fused one with the kernel that torch chooses,
`softmax:flash` and `softmax:cudnn` with the kernel of that name; `dba` is form `paper`, `dba:released` the form of its
authors' code; the others are members of the zoo (docs/zoo.md). "autocast" has float32 weights and takes products in
bfloat16.

Figures in brackets are the paper's, which has only ratios, to an unfused softmax attention, and does not say whether they
are of training or of inference. Its columns from 1,024 on repeat for Local, Linformer, Reformer, Sinkhorn, Synthesizer,
Linear Transformer and Performer what Long-Range Arena measured in training on TPUs with other code, so they were not
measured beside DBA.
)md";

std::string formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// Three digits, and no exponent.
std::string milliseconds(double seconds) {
  constexpr double kMilli = 1e3, kWhole = 100;
  return formatted(kMilli * seconds < kWhole ? "%.3g" : "%.0f", kMilli * seconds);
}

/// The paper's ratio for a method at a length, if it prints one.
std::optional<double> paper_ratio(const std::string& method, std::int64_t length, bool speed) {
  const auto column = std::find(kPaperLengths.begin(), kPaperLengths.end(), length);
  for (const auto& row : kPaperEfficiency) {
    if (row.method == method && column != kPaperLengths.end()) {
      const auto index = static_cast<std::size_t>(column - kPaperLengths.begin());
      return speed ? row.speed[index] : row.memory[index];
    }
  }
  return std::nullopt;
}

std::vector<std::int64_t> lengths_of(const EfficiencyResults& results) {
  std::vector<std::int64_t> lengths;
  for (const auto& cell : results.cells) {
    lengths.push_back(cell.length);
  }
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

/// Those that have figures, in the order of efficiency_methods; others behind them as they come.
std::vector<std::string> methods_of(const EfficiencyResults& results) {
  auto methods = efficiency_methods(results.device != "cpu");
  std::erase_if(methods, [&](const std::string& method) {
    return std::ranges::none_of(results.cells, [&](const EfficiencyCell& cell) { return cell.method == method; });
  });
  for (const auto& cell : results.cells) {
    if (std::ranges::count(methods, cell.method) == 0) {
      methods.push_back(cell.method);
    }
  }
  return methods;
}

/// One table: a method a row, a length a column.
template <typename Entry>
std::string table(const EfficiencyResults& results, const std::string& heading, const Entry& entry) {
  const auto lengths = lengths_of(results);
  std::string text = "\n#### " + heading + "\n\n| method |", rule = "|---|";
  for (const auto length : lengths) {
    text += " " + bytes::with_commas(length) + " |";
    rule += "---:|";
  }
  text += "\n" + rule + "\n";
  for (const auto& method : methods_of(results)) {
    text += "| " + method + " |";
    for (const auto length : lengths) {
      text += " " + entry(method, length) + " |";
    }
    text += "\n";
  }
  return text;
}

std::string ratio_table(const EfficiencyResults& results, const std::string& pass, bool speed, bool fused) {
  const auto heading = std::string(speed ? "Speed" : "Peak memory") + ", " + pass + ", against " +
                       (fused ? "fused" : "unfused") + " softmax attention";
  return table(results, heading, [&](const std::string& method, std::int64_t length) -> std::string {
    const auto* cell = results.find(method, length, pass);
    if (cell == nullptr) {
      return "";
    }
    const char* baseline = fused ? kFused : kUnfused;
    const auto ratio = speed ? speed_ratio(results, *cell, baseline) : memory_ratio(results, *cell, baseline);
    auto text = ratio ? formatted("%.2f", *ratio) : cell->measured() ? "·" : "–";
    const auto paper = paper_ratio(method, length, speed);
    if (paper && !fused) {
      text += formatted(speed ? " (%.1f)" : " (%.2f)", *paper);
    }
    return text;
  });
}

std::string absolute_table(const EfficiencyResults& results, const std::string& pass) {
  return table(results, "Milliseconds and GB at the peak, " + pass,
               [&](const std::string& method, std::int64_t length) -> std::string {
                 const auto* cell = results.find(method, length, pass);
                 if (cell == nullptr) {
                   return "";
                 }
                 return cell->measured() ? milliseconds(cell->seconds) + ", " +
                                               formatted("%.2f", static_cast<double>(cell->bytes) / 1e9)
                                         : "–";
               });
}

/// "Medians of 3 to 10 samples, …": how many there are, and how far their quartiles are apart.
std::string spread(const EfficiencyResults& results) {
  std::vector<std::int64_t> samples;
  std::vector<double> apart;
  for (const auto& cell : results.cells) {
    if (cell.measured()) {
      samples.push_back(cell.samples);
      apart.push_back((cell.high - cell.low) / cell.seconds);
    }
  }
  if (samples.empty()) {
    return "";
  }
  std::ranges::sort(apart);
  const auto [fewest, most] = std::ranges::minmax(samples);
  return "\nTimes are medians of " + (fewest == most ? "" : std::to_string(fewest) + " to ") +
         bytes::counted(most, "sample") + ". The quartiles of half of them are at most " +
         formatted("%.1f", 100 * apart[apart.size() / 2]) + " % apart, of all " +
         formatted("%.0f", 100 * apart.back()) + " %; the files beside this page have each.\n";
}

std::string options_of(const EfficiencyResults& results) {
  std::string text;
  for (const auto& [method, values] : results.options) {
    text += (text.empty() ? "\nOptions: " : "; ") + method + ": " + values;
  }
  return text.empty() ? text : text + ".\n";
}

/// Which methods fused softmax attention is faster than at every length that has both.
std::string always_slower(const EfficiencyResults& results, const std::string& pass) {
  std::vector<std::string> names;
  for (const auto& method : methods_of(results)) {
    std::vector<double> ratios;
    for (const auto length : lengths_of(results)) {
      const auto* cell = results.find(method, length, pass);
      const auto ratio = cell == nullptr ? std::nullopt : speed_ratio(results, *cell, kFused);
      if (ratio) {
        ratios.push_back(*ratio);
      }
    }
    if (method != kFused && !ratios.empty() && std::ranges::all_of(ratios, [](double ratio) { return ratio < 1; })) {
      names.push_back(method);
    }
  }
  return names.empty() ? "" : "\nSlower than fused softmax attention at every length: " + bytes::listed(names) + ".\n";
}

/// Which figures were taken with another build than the one that the machine's description names, if any.
std::string other_builds(const EfficiencyResults& results) {
  std::map<std::string, std::vector<std::string>> methods;
  for (const auto& cell : results.cells) {
    if (!cell.measured() || cell.build == results.fact("dba")) {
      continue;
    }
    auto& of_build = methods[cell.build];
    if (std::ranges::count(of_build, cell.method) == 0) {
      of_build.push_back(cell.method);
    }
  }
  std::string text;
  for (const auto& [build, names] : methods) {
    text += "\nFigures of dba " + build + ": " + bytes::listed(names) + ".\n";
  }
  return text;
}

std::string section(const EfficiencyResults& results) {
  std::string machine;
  for (const auto& [name, value] : results.machine) {
    machine += (machine.empty() ? "" : "; ") + name + " " + value;
  }
  std::string text =
      "\n## " + results.device + ", " + results.dtype + ", " + bytes::counted(results.batch, "sequence") +
      " a batch\n\n" + bytes::counted(results.layers, "layer") + ", d " + std::to_string(results.d) + ", " +
      bytes::counted(results.heads, "head") + ", feed-forward width " + bytes::with_commas(results.d_ffn) + ". " +
      machine + ". – has no figure, for the reason below; · has one, but its yardstick has none.\n" +
      other_builds(results) + spread(results) + options_of(results) + "\n    dba reproduce efficiency --device " +
      results.device + " --dtype " + results.dtype + " --batch " + std::to_string(results.batch) + "\n";
  for (const std::string pass : {"training", "inference"}) {
    text += "\n### " + std::string(pass == "training" ? "Training" : "Inference") + "\n" + always_slower(results, pass);
    for (const bool fused : {false, true}) {
      text += ratio_table(results, pass, /*speed=*/true, fused);
      text += ratio_table(results, pass, /*speed=*/false, fused);
    }
    text += absolute_table(results, pass);
  }
  std::string reasons;
  for (const auto& cell : results.cells) {
    if (!cell.measured()) {
      reasons += "- " + cell.method + ", " + cell.pass + ", n = " + bytes::with_commas(cell.length) + ": " +
                 cell.status + ": " + cell.reason + "\n";
    }
  }
  return reasons.empty() ? text : text + "\nWithout a figure:\n\n" + reasons;
}

}  // namespace

std::string efficiency_page(std::span<const EfficiencyResults> all, bool figure) {
  std::string text = kPreface;
  if (figure) {
    text += "\n![speed, memory and accuracy, figure 1 of the paper](figure1.svg)\n";
  }
  for (const auto& results : all) {
    text += section(results);
  }
  return text;
}

std::filesystem::path write_efficiency_page(const std::filesystem::path& folder) {
  auto names = run::names_in(folder);
  std::sort(names.begin(), names.end(), std::greater<>());  // GPUs before the CPU
  std::vector<EfficiencyResults> all;
  for (const auto& name : names) {
    if (name.ends_with(".json") && (name.starts_with("cpu-") || name.starts_with("cuda-"))) {
      all.push_back(*read_efficiency(folder / name));
    }
  }
  const auto text = efficiency_page(all, std::ranges::count(names, "figure1.svg") > 0);
  const auto page = folder / "README.md";
  bytes::atomic_write(page, [&](bytes::OutputFile& output) { output.write(std::as_bytes(std::span(text))); });
  return page;
}

}  // namespace dba::reproduce

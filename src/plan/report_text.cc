#include <algorithm>
#include <cmath>
#include <cstdio>

#include "bytes/count.h"
#include "plan/constants_file.h"
#include "plan/fused_range.h"
#include "plan/report.h"

namespace dba::plan {
namespace {

constexpr double kMilli = 1e3;
constexpr double kMega = 1e6;
constexpr double kGiga = 1e9;

using Row = std::vector<std::string>;

/// Three significant digits, without an exponent.
std::string short_number(double value) {
  if (!std::isfinite(value)) {
    return "-";
  }
  const int digits = value == 0 ? 0 : static_cast<int>(std::floor(std::log10(std::abs(value))));
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", std::clamp(2 - digits, 0, 6), value);
  return text;
}

std::string scientific(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", value);
  return std::isfinite(value) ? text : "-";
}

/// Words in the first column, numbers in the others.
std::string table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      text += i == 0 ? row[i] + space : "  " + space + row[i];
    }
    text += "\n";
  }
  return text;
}

std::string description(const Shape& s) {
  auto text = bytes::counted(s.tokens, "token") + " in " + bytes::counted(s.batch, "sequence") + " of up to " +
              std::to_string(s.length()) + ", d " + std::to_string(s.d) + ", H " + std::to_string(s.heads) + ", d_p " +
              std::to_string(s.d_p) + ", d_in " + std::to_string(s.e * s.heads) + ", form " + to_string(s.form) +
              ", normalise " + to_string(s.normalise) + ", " + section_name(s.device, s.dtype);
  text += s.autocast ? " by autocast" : "";
  text += s.slots_per_sequence ? ", Z per sequence" : ", one Z";
  return text + (s.training ? ", forward and backward" : ", forward");
}

Row cells(const Estimate& estimate, const std::optional<Figures>& figures) {
  Row row = {to_string(estimate.candidate)};
  const auto* figure = [&]() -> const Figure* {
    if (!figures) {
      return nullptr;
    }
    const auto found = figures->candidates.find(estimate.candidate);
    return found == figures->candidates.end() ? nullptr : &found->second;
  }();
  const bool possible = estimate.obstacle.empty();
  row.push_back(possible ? short_number(kMilli * estimate.seconds) : "-");
  if (figures) {
    row.push_back(figure != nullptr ? short_number(kMilli * figure->seconds) : "-");
  }
  row.push_back(short_number(estimate.cost.operations / kGiga));
  row.push_back(short_number(estimate.cost.bytes / kMega));
  row.push_back(short_number(estimate.cost.memory / kMega));
  if (figures) {
    const bool known = figure != nullptr && figure->memory.tensors >= 0;
    row.push_back(known ? short_number(static_cast<double>(figure->memory.tensors) / kMega) : "-");
    row.push_back(figure != nullptr ? scientific(figure->difference) : "-");
  }
  return row;
}

std::string measured_sentence(const Report& report) {
  const auto& figures = report.figures->candidates;
  const auto chosen = figures.find(report.plan.choice);
  if (chosen == figures.end() || !std::isfinite(chosen->second.seconds)) {
    return "the choice could not be measured";
  }
  auto best = chosen;
  for (auto it = figures.begin(); it != figures.end(); ++it) {
    if (it->second.seconds < best->second.seconds) {
      best = it;
    }
  }
  if (best == chosen) {
    return "the choice is the fastest";
  }
  return to_string(best->first) + " is the fastest; the choice takes " +
         short_number(100 * (chosen->second.seconds / best->second.seconds - 1)) + " % longer";
}

}  // namespace

std::string to_text(const Report& report) {
  const auto& shape = report.shape;
  std::string text = "shape      " + description(shape) + "\n";
  text += "constants  " +
          (report.calibrated ? "measured on this machine, " + report.constants_file
                             : "defaults; `dba plan --calibrate` measures those of this machine") +
          "\n\n";
  Row heads = {"candidate", "predicted ms"};
  for (const char* name : {"measured ms", "GFLOP", "MB moved", "peak MB", "measured peak MB", "difference"}) {
    const bool measured = std::string(name).rfind("measured", 0) == 0 || std::string(name) == "difference";
    if (report.figures || !measured) {
      heads.emplace_back(name);
    }
  }
  std::vector<Row> rows = {heads};
  std::string remarks;
  for (const auto& estimate : report.plan.estimates) {
    rows.push_back(cells(estimate, report.figures));
    if (!estimate.obstacle.empty()) {
      remarks += "  " + to_string(estimate.candidate) + " is out of the question: " + estimate.obstacle + "\n";
    }
  }
  text += table(rows) + remarks;
  if (report.figures) {
    for (const auto& [candidate, figure] : report.figures->candidates) {
      if (!figure.failure.empty()) {
        text += "  " + to_string(candidate) + " failed: " + figure.failure + "\n";
      }
    }
  }
  text += "\nchoice     " + report.plan.reason + "\n";
  if (report.figures) {
    text += "measured   " + measured_sentence(report) + "\n";
  }
  if (shape.device == at::kCUDA && report.plan.of(Candidate::fused).obstacle.empty()) {
    auto reasons = hopper_obstacles(shape);
    text += "kernels    " + std::string(reasons.empty() ? "on compute capability 9.0 those for Hopper, elsewhere the "
                                                          "general ones\n"
                                                        : "the general ones\n");
    const auto of_fold = fold_obstacles(shape);
    reasons.insert(reasons.end(), of_fold.begin(), of_fold.end());
    if (const auto reason = core_obstacle(shape); !reason.empty()) {
      reasons.push_back(reason);
    }
    for (const auto& reason : reasons) {
      text += "           " + reason + "\n";
    }
  }
  text += "softmax    a layer of softmax attention is expected to take " +
          short_number(kMilli * report.softmax_seconds) + " ms";
  if (report.figures && std::isfinite(report.figures->softmax.seconds)) {
    text += " and takes " + short_number(kMilli * report.figures->softmax.seconds) + " ms";
  }
  text += "\ncrossover  " +
          (report.crossover ? "the choice is expected to be faster than softmax attention from n = " +
                                  std::to_string(*report.crossover) + " on, with as many tokens in all"
                            : "softmax attention is expected to be faster at every length up to 2^24") +
          "\n";
  return text;
}

std::string to_markdown(const std::vector<GridRow>& rows) {
  std::string text =
      "| n | batch | d | H | d_p | form | pass | choice | ms | best | ms | loss |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  std::vector<double> losses;
  for (const auto& row : rows) {
    const auto& s = row.shape;
    losses.push_back(row.loss());
    for (const auto value : {s.length(), s.batch, s.d, s.heads, s.d_p}) {
      text += "| " + std::to_string(value) + " ";
    }
    text += "| " + to_string(s.form) + " | " + (s.training ? "training" : "forward") + " | " + to_string(row.choice) +
            " | " + short_number(kMilli * row.choice_seconds) + " | " + to_string(row.best) + " | " +
            short_number(kMilli * row.best_seconds) + " | " + short_number(100 * row.loss()) + " % |\n";
  }
  if (losses.empty()) {
    return text + "\nNothing was measured.\n";
  }
  constexpr double kGoal = 0.15;
  const auto within = std::count_if(losses.begin(), losses.end(), [](double loss) { return loss <= kGoal; });
  double sum = 0;
  for (const double loss : losses) {
    sum += loss;
  }
  text += "\n" + std::to_string(within) + " of " + std::to_string(losses.size()) +
          " choices are within 15 % of the best candidate; the mean loss is " +
          short_number(100 * sum / static_cast<double>(losses.size())) + " %, the worst " +
          short_number(100 * *std::max_element(losses.begin(), losses.end())) + " %.\n";
  return text;
}

}  // namespace dba::plan

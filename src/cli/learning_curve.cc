#include "cli/learning_curve.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

namespace dba::cli {
namespace {

constexpr int kWidth = 64;
constexpr int kHeight = 12;

struct Point {
  double update, accuracy;
  bool validation;
};

std::vector<Point> read(const std::filesystem::path& metrics) {
  std::vector<Point> points;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const auto entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!entry.is_object() || !entry.contains("accuracy") || !entry.contains("step")) {
      continue;
    }
    const auto part = entry.value("part", std::string());
    if (part == "train" || part == "validation") {
      points.push_back({entry["step"].get<double>(), entry["accuracy"].get<double>(), part == "validation"});
    }
  }
  return points;
}

}  // namespace

std::string draw_learning_curve(const std::filesystem::path& metrics) {
  const auto points = read(metrics);
  if (points.size() < 2) {
    return "";
  }
  double last = 0, low = 1, high = 0;
  for (const auto& point : points) {
    last = std::max(last, point.update);
    low = std::min(low, point.accuracy);
    high = std::max(high, point.accuracy);
  }
  const auto range = std::max(high - low, 1e-9);
  std::vector<std::vector<const char*>> grid(kHeight, std::vector<const char*>(kWidth, " "));
  for (const bool validation : {false, true}) {  // validation lies on top
    for (const auto& point : points) {
      if (point.validation == validation) {
        const auto column = std::min(kWidth - 1, static_cast<int>(point.update / last * kWidth));
        const auto row = std::min(kHeight - 1, static_cast<int>((high - point.accuracy) / range * kHeight));
        grid[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)] = validation ? "o" : "·";
      }
    }
  }
  std::string text = "accuracy over updates: · training, o validation\n";
  for (int row = 0; row < kHeight; ++row) {
    char label[16];
    std::snprintf(label, sizeof label, "%6.3f ", high - range * row / (kHeight - 1));
    text += label;
    text += "│";
    for (const auto* cell : grid[static_cast<std::size_t>(row)]) {
      text += cell;
    }
    text += "\n";
  }
  char foot[96];
  std::snprintf(foot, sizeof foot, "        0%*lld\n", kWidth - 1, static_cast<long long>(last));
  return text + foot;
}

}  // namespace dba::cli

#include "cli/seed_summary.h"

#include <nlohmann/json.hpp>

#include "reproduce/table.h"

namespace dba::cli {

void SeedSummary::add(const std::string& report) {
  const auto json = nlohmann::json::parse(report);
  const auto protocols = json.value("protocols", nlohmann::json::object());
  for (const auto& [protocol, metrics] : protocols.items()) {
    accuracies_["test accuracy, protocol " + protocol].push_back(metrics.at("accuracy").get<double>());
  }
  if (protocols.empty() && json.contains("validation")) {
    accuracies_["validation accuracy"].push_back(json.at("validation").at("accuracy").get<double>());
  }
}

std::string SeedSummary::text() const {
  std::string text;
  for (const auto& [name, values] : accuracies_) {
    if (values.size() > 1) {
      text +=
          name + ", in percent, mean ± standard deviation (seeds): " + reproduce::mean_and_deviation(values, 2) + "\n";
    }
  }
  return text;
}

}  // namespace dba::cli

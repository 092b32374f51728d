#pragma once

#include <map>
#include <string>
#include <vector>

namespace dba::cli {

/// What runs of several seeds reached together.
class SeedSummary {
 public:
  /// report: of a finished run, as report.json holds it.
  void add(const std::string& report);

  /// A line for every protocol with the mean and the standard deviation of the test accuracy, or one for the accuracy
  /// on the validation data where there is no test file. Empty for fewer than two runs.
  std::string text() const;

 private:
  std::map<std::string, std::vector<double>> accuracies_;
};

}  // namespace dba::cli

#pragma once

#include <span>
#include <string>

#include "reproduce/experiment.h"
#include "reproduce/result.h"

namespace dba::reproduce {

/// results/<experiment>/README.md: for every section that has results a Markdown table, tasks down and methods across,
/// "mean ± standard deviation (seeds)" in percent, the paper's figures under ours where the section says so, and the
/// mean over the tasks that all methods have run; at the end what ran where and for how long. Rows of trials name what
/// was set in them, and a list names their files. `doubts`: sentences that the page says beside its own.
std::string results_page(const Experiment& experiment, std::span<const Result> results,
                         std::span<const std::string> doubts = {});

/// Mean and sample deviation of some accuracies, in percent: "98.9 ± 0.2 (5)", "98.9 (1)".
std::string mean_and_deviation(std::span<const double> accuracies, int decimals = 1);

}  // namespace dba::reproduce

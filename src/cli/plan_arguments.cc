#include "cli/plan_arguments.h"

#include <ATen/Context.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <stdexcept>

#include "cli/exit_status.h"
#include "cli/text_output.h"
#include "dba/run/signals.h"

namespace dba::cli {

at::DeviceType plan_device(const PlanArguments& arguments) {
  const auto& name = arguments.device;
  if (name == "cuda" && !at::globalContext().hasCUDA()) {
    throw std::runtime_error("plan: --device cuda: torch finds no CUDA GPU that it can use; `dba info` says more");
  }
  return name == "cuda" ? at::kCUDA : at::kCPU;
}

bench::Precision plan_precision(const PlanArguments& arguments) {
  try {
    return bench::parse_precision(arguments.dtype);
  } catch (const std::invalid_argument& error) {
    throw CLI::ValidationError("--dtype", error.what());
  }
}

void print_plan(const PlanArguments& arguments, const std::string& text, const std::string& json) {
  if (arguments.json != kStandardOutput) {
    std::cout << text << std::flush;
  }
  if (!arguments.json.empty()) {
    write_text(arguments.json, json);
  }
}

bool plan_is_stopped() {
  return run::StopSignals::received() != 0;
}

void end_if_stopped() {
  if (plan_is_stopped()) {
    throw ExitStatus{run::StopSignals::exit_code(run::StopSignals::received())};
  }
}

}  // namespace dba::cli

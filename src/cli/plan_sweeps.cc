#include "cli/plan_sweeps.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>

#include "bytes/count.h"
#include "cli/machine.h"
#include "dba/run/progress.h"
#include "dba/run/signals.h"
#include "plan/calibrate.h"
#include "plan/constants_file.h"
#include "plan/report.h"

namespace dba::cli {
namespace {

/// A bar that knows its length when the first step is done.
class Bar {
 public:
  explicit Bar(bool quiet) {
    look_.quiet = quiet;
  }
  void operator()(std::size_t done, std::size_t total) {
    if (!progress_) {
      progress_ = std::make_unique<run::Progress>(0, static_cast<std::int64_t>(total), look_);
    }
    progress_->update(static_cast<std::int64_t>(done));
    if (done == total) {
      progress_->finish();
    }
  }

 private:
  run::Progress::Options look_;
  std::unique_ptr<run::Progress> progress_;
};

std::string machine_line(at::DeviceType device) {
  std::string line;
  for (const auto& [name, value] : describe_machine(at::Device(device))) {
    if (name == "CPU" || name == "GPU" || name == "threads" || name == "dba") {
      line += (line.empty() ? "" : "; ") + (name == "CPU" || name == "GPU" ? value : name + " " + value);
    }
  }
  return line;
}

}  // namespace

void calibrate_plan(const PlanArguments& arguments) {
  const auto device = plan_device(arguments);
  const auto precision = plan_precision(arguments);
  const auto dtype = bench::compute_type(precision);
  const auto path = plan::constants_path();
  // Before a minute of work: the sections of other devices and types are kept, so the file must be readable.
  auto file = plan::read_constants_file(path);
  const run::StopSignals signals;
  Bar bar(arguments.quiet);
  plan::Calibration found;
  try {
    found = plan::calibrate(plan::calibration_shapes(device, dtype), std::ref(bar), plan_is_stopped);
  } catch (const std::runtime_error&) {
    end_if_stopped();
    throw;
  }
  const auto section = plan::section_name(device, dtype);
  file.machine = machine_line(device);
  file.sections[section] = found.constants;
  plan::write_constants_file(path, file);
  plan::forget_constants();
  const auto percent = [](double share) { return std::to_string(static_cast<int>(100 * share + 0.5)) + " %"; };
  std::cout << section << ": fitted to " << bytes::counted(found.samples, "figure") << "; predictions are off by "
            << percent(found.error_after) << " (root mean square), by " << percent(found.error_before)
            << " with the defaults\nwritten to " << path.string() << "\n";
}

void measure_plan_grid(const PlanArguments& arguments) {
  const auto device = plan_device(arguments);
  const auto precision = plan_precision(arguments);
  if (precision == bench::Precision::autocast) {
    throw CLI::ValidationError("--dtype", "must be a type of tokens with --grid, got autocast; take bfloat16");
  }
  const run::StopSignals signals;
  Bar bar(arguments.quiet);
  constexpr double kSeconds = 0.1;
  const auto rows =
      plan::measure_grid(plan::grid_shapes(device, bench::compute_type(precision)),
                         arguments.seconds > 0 ? arguments.seconds : kSeconds, std::ref(bar), plan_is_stopped);
  std::string text;
  for (const auto& [name, value] : describe_machine(at::Device(device))) {
    text += name + ": " + value + "  \n";
  }
  print_plan(arguments, text + "\n" + plan::to_markdown(rows), plan::to_json(rows));
  end_if_stopped();
}

}  // namespace dba::cli

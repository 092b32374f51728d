#include "cli/plan.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>

#include "cli/exit_status.h"
#include "cli/number_checks.h"
#include "cli/plan_arguments.h"
#include "cli/plan_sweeps.h"
#include "cli/text_output.h"
#include "dba/run/signals.h"
#include "plan/constants_file.h"
#include "plan/report.h"

namespace dba::cli {
namespace {

plan::Shape shape_of(const PlanArguments& a) {
  if (a.length == 0 && a.lengths.empty()) {
    throw CLI::ValidationError("--n", "or --lengths must be given: the tokens of a sequence, as in --n 4096");
  }
  if (a.d % a.heads != 0) {
    throw CLI::ValidationError("--heads",
                               "must divide --d, got " + std::to_string(a.heads) + " and " + std::to_string(a.d));
  }
  plan::Shape shape;
  if (a.lengths.empty()) {
    shape.longest = a.length;
    shape.batch = a.batch;
    shape.tokens = a.length * a.batch;
  } else {
    shape.longest = *std::max_element(a.lengths.begin(), a.lengths.end());
    shape.batch = static_cast<std::int64_t>(a.lengths.size());
    shape.tokens = std::accumulate(a.lengths.begin(), a.lengths.end(), std::int64_t{0});
    if (a.measure && shape.tokens != shape.longest * shape.batch) {
      throw CLI::ValidationError("--measure",
                                 "takes sequences of one length; give --n and --batch instead of --lengths");
    }
  }
  shape.d = a.d;
  shape.heads = a.heads;
  shape.d_p = a.d_p;
  shape.e = (a.d_in + a.heads - 1) / a.heads;
  shape.form = parse_form(a.form);
  shape.normalise = parse_normalise(a.normalise);
  if (shape.form == Form::released && shape.normalise == Normalise::linear) {
    throw CLI::ValidationError("--normalise", "must be softmax in form released, got linear");
  }
  shape.slots_per_sequence = a.slots == "each";
  const auto precision = plan_precision(a);
  shape.dtype = bench::compute_type(precision);
  shape.autocast = precision == bench::Precision::autocast;
  shape.device = plan_device(a);
  shape.training = a.pass == "training";
  shape.dropout = a.dropout;
  shape.threads = at::get_num_threads();
  return shape;
}

void run_shape(const PlanArguments& arguments) {
  plan::Report report;
  report.shape = shape_of(arguments);
  report.constants_file = plan::constants_path().string();
  // A damaged file is an error here, where the constants are what was asked for.
  plan::read_constants_file(report.constants_file);
  const auto& constants = plan::constants_for(report.shape.device, report.shape.dtype);
  report.calibrated = constants.calibrated;
  report.plan = plan::make_plan(report.shape, constants);
  report.softmax_seconds = constants.time_of(plan::softmax_cost(report.shape).tally);
  report.crossover = plan::crossover_length(report.shape, constants);
  const run::StopSignals signals;
  if (arguments.measure) {
    plan::Effort effort;
    effort.seconds = arguments.seconds > 0 ? arguments.seconds : effort.seconds;
    effort.softmax = true;
    effort.stop = plan_is_stopped;
    report.figures = plan::measure(report.shape, report.plan, effort);
    end_if_stopped();
  }
  print_plan(arguments, plan::to_text(report), plan::to_json(report));
  if (report.figures) {
    const auto& figures = report.figures->candidates;
    if (std::any_of(figures.begin(), figures.end(), [](const auto& one) { return !one.second.failure.empty(); })) {
      throw ExitStatus{kFailed};
    }
  }
}

void run_plan(const PlanArguments& arguments) {
  if (arguments.threads > 0) {
    at::set_num_threads(arguments.threads);
  }
  if (arguments.calibrate) {
    calibrate_plan(arguments);
  } else if (arguments.grid) {
    measure_plan_grid(arguments);
  } else {
    run_shape(arguments);
  }
}

}  // namespace

void add_plan(CLI::App& app) {
  auto* command = app.add_subcommand("plan", "Say which way of computing a layer suits a shape, and why");
  command->footer(
      "Examples:\n"
      "  dba plan --n 4096 --d 256                       the candidates for one sequence, and the choice\n"
      "  dba plan --n 1024 --batch 32 --d 64 --heads 8 --d-p 32 --pass training --measure\n"
      "  dba plan --lengths 812,77,2048 --dtype bfloat16 --device cuda --json\n"
      "  dba plan --calibrate                            measure this machine's constants, in a minute\n"
      "  dba plan --grid                                 60 shapes: how far the choice is from the best\n"
      "The constants lie in the file that DBA_PLAN_FILE names, or in dba/plan.json of the cache folder.\n"
      "docs/planner.md states the cost model.\n"
      "Exit status: 0 done, 1 failed, 2 wrong usage, 130 or 143 after a signal.");
  auto arguments = std::make_shared<PlanArguments>();
  auto& a = *arguments;
  const auto size = [&](const char* name, std::int64_t& value, const char* meaning) {
    return command->add_option(name, value, meaning)->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  };
  auto* length = size("--n", a.length, "tokens of a sequence");
  auto* lengths = command->add_option("--lengths", a.lengths, "tokens of each sequence of a packed batch")
                      ->delimiter(',')
                      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
                      ->excludes(length);
  size("--batch", a.batch, "sequences of --n tokens")->capture_default_str()->excludes(lengths);
  size("--d", a.d, "width of a token")->capture_default_str();
  size("--heads", a.heads, "heads")->capture_default_str();
  size("--d-p", a.d_p, "slots per head")->capture_default_str();
  size("--d-in", a.d_in, "width of the compressed queries and keys, over all heads")->capture_default_str();
  command->add_option("--form", a.form, "the paper's equations or the authors' code")
      ->check(CLI::IsMember({"paper", "released"}))
      ->capture_default_str();
  command->add_option("--normalise", a.normalise, "of W_r' and W_c'")
      ->check(CLI::IsMember({"softmax", "linear"}))
      ->capture_default_str();
  command->add_option("--slots", a.slots, "one Z for all sequences, or one for each as in later layers of a stack")
      ->check(CLI::IsMember({"shared", "each"}))
      ->capture_default_str();
  command->add_option("--dtype", a.dtype, "float32, float64, bfloat16, float16 or autocast (bfloat16)")
      ->capture_default_str();
  command->add_option("--device", a.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--pass", a.pass, "forward alone, or training: forward and backward")
      ->check(CLI::IsMember({"forward", "training"}))
      ->capture_default_str();
  command->add_option("--dropout", a.dropout, "of training")->check(CLI::Range(0.0, 0.99))->capture_default_str();
  command->add_option("--threads", a.threads, "of the CPU; 0: as torch has chosen")
      ->check(kNotNegative)
      ->capture_default_str();
  auto* measure = command->add_flag("--measure", a.measure, "time the candidates as well");
  command->add_option("--seconds", a.seconds, "under the clock, per figure, about")->check(kPositive);
  auto* calibrate = command->add_flag("--calibrate", a.calibrate, "measure the constants of --device and --dtype");
  calibrate->excludes(measure)->excludes(length)->excludes(lengths);
  command->add_flag("--grid", a.grid, "measure the choice over 60 shapes, in a few minutes")
      ->excludes(measure)
      ->excludes(calibrate)
      ->excludes(length)
      ->excludes(lengths);
  command->add_option("--json", a.json, "write JSON to this file, or without one to standard output")
      ->expected(0, 1)
      ->default_str(kStandardOutput);
  command->add_flag("--quiet", a.quiet, "no progress");
  command->callback([arguments] { run_plan(*arguments); });
}

}  // namespace dba::cli

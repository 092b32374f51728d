#include "cli/efficiency.h"

#include <ATen/Context.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <stdexcept>

#include "bench/efficiency.h"
#include "bench/split_methods.h"
#include "cli/exit_status.h"
#include "cli/machine.h"
#include "cli/number_checks.h"
#include "dba/run/progress.h"
#include "dba/run/signals.h"
#include "reproduce/run_lock.h"
#include "run/folders.h"

namespace dba::cli {
namespace {

struct EfficiencyArguments {
  std::string device = "auto", dtype, methods, results = "results/efficiency";
  std::vector<std::int64_t> lengths = {256, 512, 1024, 2048, 3072, 4096, 8192, 16384};
  std::int64_t batch = 0;
  double seconds = 0.15, longest_call = 0;
  std::int64_t repeats = 10;
  bool list = false, table = false, retake = false, quiet = false;
};

/// What the file of a device is called: figures of one setting stand in one file.
std::string file_name(const reproduce::EfficiencyResults& results) {
  return results.device + "-" + results.dtype + "-batch" + std::to_string(results.batch) + ".json";
}

void run_efficiency(const EfficiencyArguments& arguments) {
  const std::filesystem::path folder = arguments.results;
  if (arguments.table) {
    std::cout << reproduce::write_efficiency_page(folder).string() << "\n";
    return;
  }
  const bool has_gpu = at::globalContext().hasCUDA();
  if (arguments.device == "cuda" && !has_gpu)
    throw std::runtime_error(
        "reproduce efficiency: --device cuda: torch finds no CUDA GPU that it can use; `dba info` says more");
  const bool on_gpu = arguments.device == "cuda" || (arguments.device == "auto" && has_gpu);

  bench::EfficiencyOptions options;
  options.device = on_gpu ? "cuda" : "cpu";
  options.dtype = !arguments.dtype.empty() ? arguments.dtype : on_gpu ? "autocast" : "float32";
  options.methods =
      arguments.methods.empty() ? reproduce::efficiency_methods(on_gpu) : bench::split_methods(arguments.methods);
  options.lengths = arguments.lengths;
  options.batch = arguments.batch > 0 ? arguments.batch : on_gpu ? 32 : 2;
  options.seconds = arguments.seconds;
  options.repeats = arguments.repeats;
  options.retake = arguments.retake;
  options.longest_call = arguments.longest_call > 0 ? arguments.longest_call : on_gpu ? 1.0 : 10.0;

  reproduce::EfficiencyResults results;
  results.machine = describe_machine(at::Device(on_gpu ? at::kCUDA : at::kCPU));
  results.device = options.device;
  results.dtype = options.dtype;
  results.batch = options.batch;
  const auto file = folder / file_name(results);
  if (arguments.list) {
    std::cout << efficiency_list(reproduce::read_efficiency(file).value_or(results), options.methods, options.lengths);
    return;
  }
  run::make_folders(folder);
  std::string owner;
  const auto lock = reproduce::RunLock::take(file.string() + ".lock", owner);
  if (!lock)
    throw std::runtime_error("reproduce efficiency: " + owner + " writes figures into " + file.string() +
                             "; wait for it, or name another --results");
  if (auto earlier = reproduce::read_efficiency(file)) {
    if (!earlier->comparable(results))
      throw std::runtime_error(
          "reproduce efficiency: " + file.string() +
          " holds figures of another machine, number of threads or torch; name another --results, or remove it");
    results.cells = std::move(earlier->cells);
    results.options = std::move(earlier->options);
  }

  const run::StopSignals signals;
  run::Progress::Options look;
  look.quiet = arguments.quiet;
  run::Progress progress(0, static_cast<std::int64_t>(options.methods.size() * options.lengths.size()), look);
  options.say = [&](const std::string& sentence) { progress.message(sentence); };
  options.progress = [&](std::int64_t done, std::int64_t) { progress.update(done); };
  options.stop = [] { return run::StopSignals::received() != 0; };
  bool complete = false;
  try {
    complete = bench::measure_efficiency(options, results, [&] { reproduce::write_efficiency(file, results); });
  } catch (const std::invalid_argument& error) {
    throw CLI::ValidationError(error.what());
  }
  progress.finish();
  std::cout << file.string() << "\n" << reproduce::write_efficiency_page(folder).string() << "\n";
  if (!complete) {
    std::cerr << "stopped by a signal; the same command goes on\n";
    throw ExitStatus{run::StopSignals::exit_code(run::StopSignals::received())};
  }
  for (const auto& cell : results.cells)
    if ((cell.status == "wrong" || cell.status == "failed") && std::ranges::count(options.methods, cell.method) > 0)
      throw ExitStatus{kFailed};
}

}  // namespace

void add_efficiency(CLI::App& reproduce) {
  auto* command = reproduce.add_subcommand("efficiency", "Speed and memory of the Text model with every attention");
  command->footer(
      "Examples:\n"
      "  dba reproduce efficiency                          all methods and lengths, on the GPU if there is one\n"
      "  dba reproduce efficiency --device cpu --lengths 256,1024 --methods softmax:math,softmax,dba,performer\n"
      "  dba reproduce efficiency --device cpu --list      which figures there are and which not\n"
      "  dba reproduce efficiency --table                  only the page, from the figures there are\n"
      "  dba plot efficiency results/efficiency/FILE.json  the paper's figure 1 of them\n"
      "Every figure is saved when it is taken; the same command goes on where it was stopped.\n"
      "Exit status: 0 done, 1 a method is wrong or cannot run, 2 wrong usage, 130 or 143 after a signal.");
  auto arguments = std::make_shared<EfficiencyArguments>();
  auto& a = *arguments;
  command->add_option("--device", a.device, "cpu, cuda, or auto")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command
      ->add_option("--dtype", a.dtype,
                   "float32, bfloat16, float16 or autocast (default: autocast on a GPU, else float32)")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16", "autocast"}));
  command->add_option("--methods", a.methods,
                      "as dba bench takes them; default: softmax attention unfused and fused, and the whole zoo");
  command->add_option("--lengths", a.lengths, "tokens of a sequence")
      ->delimiter(',')
      ->check(kPositive)
      ->capture_default_str();
  command->add_option("--batch", a.batch, "sequences (default: 32 on a GPU, 2 on the CPU)")->check(kPositive);
  command->add_option("--results", a.results, "folder for the figures and their page")->capture_default_str();
  command->add_option("--seconds", a.seconds, "spent on a figure, about; three samples are taken in any case")
      ->check(kNotNegative)
      ->capture_default_str();
  command->add_option("--repeats", a.repeats, "samples of a figure, at most")->check(kPositive)->capture_default_str();
  command
      ->add_option("--longest-call", a.longest_call,
                   "seconds; a method that takes longer at one length is left out at longer ones (default: 1 on a GPU, "
                   "10 on the CPU)")
      ->check(kPositive);
  auto* only_list = command->add_flag("--list", a.list, "show which figures there are, and take none");
  command->add_flag("--retake", a.retake, "take figures of other builds of dba again");
  command->add_flag("--table", a.table, "only write the page from the figures there are")->excludes(only_list);
  command->add_flag("--quiet", a.quiet, "no progress and no remarks");
  command->callback([arguments] { run_efficiency(*arguments); });
}

}  // namespace dba::cli

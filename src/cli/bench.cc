#include "cli/bench.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>

#include "bench/measure.h"
#include "bench/report.h"
#include "bench/split_methods.h"
#include "cli/bench_settings.h"
#include "cli/exit_status.h"
#include "cli/machine.h"
#include "cli/number_checks.h"
#include "cli/text_output.h"
#include "dba/run/progress.h"
#include "dba/run/signals.h"

namespace dba::cli {
namespace {

using bench::Kind;

void run_bench(const BenchArguments& arguments, Kind kind) {
  const auto plan = bench_settings(arguments, kind);
  for (const auto& complaint : plan.complaints) {
    std::cerr << "dba: bench: " << complaint << "\n";
  }
  const auto& settings = plan.settings;
  if (settings.methods.empty() || settings.cases.empty()) {
    throw ExitStatus{kUsage};
  }
  const run::StopSignals signals;
  run::Progress::Options look;
  look.quiet = arguments.quiet;
  run::Progress progress(0,
                         static_cast<std::int64_t>(settings.cases.size() * settings.methods.size() *
                                                   settings.passes.size() * settings.caches.size()),
                         look);
  bench::Watcher watcher;
  watcher.progress = [&](std::int64_t done, std::int64_t) { progress.update(done); };
  watcher.say = [&](const std::string& sentence) { progress.message(sentence); };
  watcher.stop = [] { return run::StopSignals::received() != 0; };

  bench::Report report;
  report.machine = describe_machine(settings.device);
  report.settings = settings;
  report.results = bench::measure(settings, watcher);
  report.complete = run::StopSignals::received() == 0;
  progress.finish();

  if (arguments.json != kStandardOutput && arguments.csv != kStandardOutput) {
    std::cout << bench::to_text(report) << std::flush;
  }
  if (!arguments.json.empty()) {
    write_text(arguments.json, bench::to_json(report));
  }
  if (!arguments.csv.empty()) {
    write_text(arguments.csv, bench::to_csv(report));
  }
  if (!report.complete) {
    throw ExitStatus{run::StopSignals::exit_code(run::StopSignals::received())};
  }
  const bool bad = std::any_of(report.results.begin(), report.results.end(), [](const bench::Result& result) {
    return result.status == bench::Status::wrong || result.status == bench::Status::failed;
  });
  if (bad || !plan.complaints.empty()) {
    throw ExitStatus{kFailed};
  }
}

void add_kind(CLI::App& parent, Kind kind, const std::string& help, const std::string& footer) {
  auto* command = parent.add_subcommand(bench::to_string(kind), help);
  command->footer(footer);
  auto arguments = std::make_shared<BenchArguments>();
  auto& a = *arguments;
  command->add_option_function<std::string>(
      "--methods", [&a](const std::string& list) { a.methods = bench::split_methods(list); },
      "names with options and variants, as in \"local(block=32),softmax:flash,dba:released\"; `dba zoo` has the names");
  command->add_option_function<std::string>(
      "--baseline", [&a](const std::string& list) { a.baselines = bench::split_methods(list); },
      "methods to set the others against; default: the softmax ones");
  command->add_option("--lengths", a.lengths, "tokens of a sequence")->delimiter(',')->check(kPositive);
  auto* batch = command->add_option("--batch", a.batch, "sequences")->check(kPositive);
  command->add_option("--tokens", a.tokens, "tokens in all, instead of --batch; a longer sequence stands alone")
      ->check(kPositive)
      ->excludes(batch);
  command->add_option("--dtype", a.dtypes, "float32, float64, bfloat16, float16 or autocast (bfloat16)")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--device", a.device, "cpu, cuda or cuda:1")->capture_default_str();
  command->add_option("--threads", a.threads, "of the CPU; 0: as torch has chosen")
      ->delimiter(',')
      ->check(kNotNegative)
      ->capture_default_str();
  const auto size = [&](const char* name, std::int64_t& value, const char* meaning) {
    command->add_option(name, value, meaning)->check(kPositive)->capture_default_str();
  };
  size("--d", a.sizes.d, "width of a token");
  size("--heads", a.sizes.heads, "heads");
  size("--d-p", a.sizes.d_p, "slots per head");
  size("--d-in", a.sizes.d_in, "width of the compressed queries and keys, over all heads");
  command->add_option("--dropout", a.sizes.dropout, "of training; forward alone has none")
      ->check(CLI::Range(0.0, 0.99))
      ->capture_default_str();
  if (kind == Kind::layer) {
    command->add_option("--slots", a.slots, "one Z for all sequences, or one for each as in later layers of a stack")
        ->check(CLI::IsMember({"shared", "each"}))
        ->capture_default_str();
  } else {
    size("--d-ffn", a.sizes.d_ffn, "width of the feed-forward network");
    size("--depth", a.sizes.depth, "layers");
  }
  if (kind != Kind::train_step) {
    command->add_option("--pass", a.passes, "what is timed")
        ->check(CLI::IsMember({"forward", "forward+backward", "both"}))
        ->capture_default_str();
  }
  command->add_option("--cache", a.caches, "warm: call after call; cold: other memory fills the caches before each")
      ->check(CLI::IsMember({"warm", "cold", "both"}))
      ->capture_default_str();
  command->add_option("--repeats", a.repeats, "samples of a figure, at most")->check(kPositive)->capture_default_str();
  command->add_option("--seconds", a.seconds, "spent on a figure, about; three samples are taken in any case")
      ->check(kNotNegative)
      ->capture_default_str();
  command->add_option("--json", a.json, "write JSON to this file, or without one to standard output")
      ->expected(0, 1)
      ->default_str(kStandardOutput);
  command->add_option("--csv", a.csv, "write CSV likewise")->expected(0, 1)->default_str(kStandardOutput);
  command->add_flag("--quiet", a.quiet, "no progress and no remarks");
  command->callback([arguments, kind] { run_bench(*arguments, kind); });
}

}  // namespace

void add_bench(CLI::App& app) {
  auto* command = app.add_subcommand("bench", "Time attention against softmax attention, after checking the numbers");
  command->require_subcommand(1);
  command->footer(
      "Examples:\n"
      "  dba bench layer                                   the standard table of this machine's CPU\n"
      "  dba bench layer --device cuda --dtype bfloat16\n"
      "  dba bench encoder --lengths 1024 --json result.json\n"
      "  dba bench train-step --device cuda --dtype autocast\n"
      "docs/benchmarks.md says how the figures are taken and what the columns mean.\n"
      "Exit status: 0 done, 1 a method is wrong or cannot run, 2 wrong usage, 130 or 143 after a signal.");
  add_kind(*command, Kind::layer, "One attention layer, its projections included",
           "Examples:\n"
           "  dba bench layer --methods softmax,dba --lengths 1024,4096 --tokens 8192\n"
           "  dba bench layer --methods \"performer(features=128),longformer(window=128, globals=2),dba\"\n"
           "  dba bench layer --methods dba:direct,dba:reference,dba --baseline dba:direct --cache both\n"
           "  dba bench layer --device cuda --dtype bfloat16 --methods softmax:flash,softmax:cudnn,dba,dba:released\n"
           "  dba bench layer --csv table.csv --json table.json");
  add_kind(*command, Kind::encoder, "A stack of encoder layers: attention, feed-forward network, residuals, norms",
           "Examples:\n"
           "  dba bench encoder --depth 2 --lengths 512,2048 --methods softmax,dba\n"
           "  dba bench encoder --device cuda --dtype autocast --dropout 0.1");
  add_kind(*command, Kind::train_step, "Forward, loss, backward and optimiser step of a classifier",
           "Examples:\n"
           "  dba bench train-step --lengths 1024 --batch 4 --methods softmax,dba\n"
           "  dba bench train-step --device cuda --dtype bfloat16,autocast");
}

}  // namespace dba::cli

#include <c10/util/Exception.h>
#include <CLI/CLI.hpp>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <exception>
#include <iostream>
#include <limits>

#include "cli/bench.h"
#include "cli/build.h"
#include "cli/data.h"
#include "cli/evaluate.h"
#include "cli/exit_status.h"
#include "cli/export.h"
#include "cli/generate.h"
#include "cli/info.h"
#include "cli/plan.h"
#include "cli/plot.h"
#include "cli/predict.h"
#include "cli/reproduce.h"
#include "cli/train.h"
#include "cli/zoo.h"

namespace {

/// A step frees what the next one asks for again. By default glibc hands blocks of some megabytes back to the system,
/// and filling in their pages once more takes up to half of a step of plain ATen.
void keep_freed_memory() {
#if defined(__GLIBC__)
  constexpr int kLargestThreshold = 32 << 20;  // glibc takes no larger one
  mallopt(M_MMAP_THRESHOLD, kLargestThreshold);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  CLI::App app("dba: attention whose cost is linear in the sequence length", "dba");
  app.set_version_flag("--version", dba::cli::build().version);
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  dba generate listops --out data/listops     make data\n"
      "  dba train --config my.yaml --run runs/mine   train a classifier\n"
      "  dba evaluate runs/mine                       measure it\n"
      "  dba predict runs/mine --input new.jsonl      classify new sequences\n"
      "  dba bench layer                              time it against softmax attention\n"
      "  dba plan --n 4096 --d 256                    say which way of computing it suits a shape\n"
      "  dba plot curves runs/mine                    draw its learning curves\n"
      "  dba export runs/mine --out mine.pt2          a package for C++ programs without Python\n"
      "  dba reproduce uea --list                     the runs behind a table of the paper\n"
      "  dba zoo longformer                           say what an attention computes and can do\n"
      "Exit status: 0 done, 1 failed, 2 wrong usage, 130 or 143 stopped by a signal.");
  dba::cli::add_generate(app);
  dba::cli::add_data(app);
  dba::cli::add_train(app);
  dba::cli::add_evaluate(app);
  dba::cli::add_predict(app);
  dba::cli::add_bench(app);
  dba::cli::add_plan(app);
  dba::cli::add_plot(app);
  dba::cli::add_export(app);
  dba::cli::add_reproduce(app);
  dba::cli::add_zoo(app);
  dba::cli::add_info(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version arrive here too, with status 0.
    return app.exit(error) == 0 ? 0 : dba::cli::kUsage;
  } catch (const dba::cli::ExitStatus& exit) {
    return exit.status;
  } catch (const c10::Error& error) {
    std::cerr << "dba: " << error.what_without_backtrace() << "\n";
    return dba::cli::kFailed;
  } catch (const std::exception& error) {
    std::cerr << "dba: " << error.what() << "\n";
    return dba::cli::kFailed;
  }
  return 0;
}

#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "cli/build.h"
#include "cli/info.h"

namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("dba: attention whose cost is linear in the sequence length", "dba");
  app.set_version_flag("--version", dba::cli::build().version);
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  dba info           what this program was built with and finds here\n"
      "  dba info --json    the same for programs\n"
      "Exit status: 0 done, 1 failed, 2 wrong usage.");
  dba::cli::add_info(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version arrive here too, with status 0.
    return app.exit(error) == 0 ? 0 : kUsage;
  } catch (const std::exception& error) {
    std::cerr << "dba: " << error.what() << "\n";
    return kFailed;
  }
  return 0;
}

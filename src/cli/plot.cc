#include "cli/plot.h"

#include "cli/python_module.h"

namespace dba::cli {

void add_plot(CLI::App& app) {
  add_python_command(app, "plot", "Draw runs, measurements and attention weights (needs Python with matplotlib)");
}

}  // namespace dba::cli

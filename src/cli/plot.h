#pragma once

#include <CLI/CLI.hpp>

namespace dba::cli {

/// Adds `dba plot`: figures of runs, measurements and attention weights (python/dba/figures).
void add_plot(CLI::App& app);

}  // namespace dba::cli

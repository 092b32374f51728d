#pragma once

#include <CLI/CLI.hpp>

namespace dba::cli {

/// Adds `dba info`: what this program was built with and what it finds on this machine.
void add_info(CLI::App& app);

}  // namespace dba::cli

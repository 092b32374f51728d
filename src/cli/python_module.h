#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace dba::cli {

/// Adds a subcommand that is written in Python: `dba NAME …` becomes `python3 -m dba NAME …`, --help included.
void add_python_command(CLI::App& app, const std::string& name, const std::string& description);

}  // namespace dba::cli

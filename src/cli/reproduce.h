#pragma once

#include <CLI/CLI.hpp>

namespace dba::cli {

/// dba reproduce NAME: one subcommand per experiment. Training experiments come out of the registry of src/reproduce;
/// an experiment of another kind adds a subcommand of its own to `reproduce` inside add_reproduce.
void add_reproduce(CLI::App& app);

}  // namespace dba::cli

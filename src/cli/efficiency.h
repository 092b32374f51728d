#pragma once

#include <CLI/CLI.hpp>

namespace dba::cli {

/// dba reproduce efficiency: speed and memory of the Text model with every attention.
void add_efficiency(CLI::App& reproduce);

}  // namespace dba::cli

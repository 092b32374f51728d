#pragma once

#include <CLI/CLI.hpp>

namespace dba::cli {

void add_bench(CLI::App& app);

}  // namespace dba::cli

#pragma once

#include <CLI/CLI.hpp>

namespace dba::cli {

void add_plan(CLI::App& app);

}  // namespace dba::cli

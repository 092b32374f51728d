#pragma once

#include <CLI/App.hpp>

namespace dba::cli {

/// `dba zoo`
void add_zoo(CLI::App& app);

}  // namespace dba::cli

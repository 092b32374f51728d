#pragma once

#include <CLI/App.hpp>

namespace dba::cli {

/// `dba data`
void add_data(CLI::App& app);

}  // namespace dba::cli

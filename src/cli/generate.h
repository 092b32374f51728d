#pragma once

#include <CLI/App.hpp>

namespace dba::cli {

/// `dba generate`
void add_generate(CLI::App& app);

}  // namespace dba::cli

#pragma once

#include <CLI/App.hpp>

namespace dba::cli {

/// `dba evaluate`
void add_evaluate(CLI::App& app);

}  // namespace dba::cli

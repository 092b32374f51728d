#pragma once

#include <CLI/App.hpp>

namespace dba::cli {

/// `dba train`
void add_train(CLI::App& app);

}  // namespace dba::cli

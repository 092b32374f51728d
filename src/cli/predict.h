#pragma once

#include <CLI/App.hpp>

namespace dba::cli {

/// `dba predict`
void add_predict(CLI::App& app);

}  // namespace dba::cli

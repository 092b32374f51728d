#pragma once

#include <CLI/CLI.hpp>

namespace dba::cli {

/// Adds `dba export`: a trained run as an AOTInductor package for programs without Python (python/dba/export.py).
void add_export(CLI::App& app);

}  // namespace dba::cli

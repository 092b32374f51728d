#include "cli/export.h"

#include "cli/python_module.h"

namespace dba::cli {

void add_export(CLI::App& app) {
  add_python_command(app, "export", "Write a trained model as a package that C++ loads without Python (needs Python)");
}

}  // namespace dba::cli

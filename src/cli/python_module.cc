#include "cli/python_module.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace dba::cli {
namespace {

namespace fs = std::filesystem;

/// `python -m dba`, with a sentence instead of a traceback where there is no such package.
constexpr const char* kRunModule =
    "import importlib.util, runpy, sys\n"
    "if importlib.util.find_spec('dba') is None or importlib.util.find_spec('torch') is None:\n"
    "    sys.exit(f'dba {sys.argv[1]}: the Python at {sys.executable} has no package dba (or no torch); '\n"
    "             'run `python3 -m pip install .` in the sources of dba, or name another Python with DBA_PYTHON')\n"
    "runpy.run_module('dba', run_name='__main__', alter_sys=True)\n";

fs::path own_folder() {
  std::error_code unknown;
  return fs::read_symlink("/proc/self/exe", unknown).parent_path();
}

/// The checkout in whose build folder the program lies, as in build/release/bin; empty where it is installed.
fs::path checkout() {
  const auto root = own_folder().parent_path().parent_path().parent_path();
  return fs::exists(root / "python" / "dba" / "__main__.py") ? root : fs::path();
}

/// DBA_PYTHON, the Python that the program was installed beside, that of the checkout, or the first one on the PATH.
std::string python() {
  if (const char* given = std::getenv("DBA_PYTHON"); given != nullptr && *given != '\0') {
    return given;
  }
  for (const auto& found : {own_folder() / "python3", checkout() / ".venv" / "bin" / "python3"}) {
    if (found.is_absolute() && fs::exists(found)) {
      return found.string();
    }
  }
  return "python3";
}

/// A program of a checkout takes the package and the library of that checkout.
void use_package_of_checkout() {
  if (checkout().empty()) {
    return;
  }
  const char* before = std::getenv("PYTHONPATH");
  const auto path =
      (checkout() / "python").string() + (before != nullptr && *before != '\0' ? ":" + std::string(before) : "");
  setenv("PYTHONPATH", path.c_str(), /*overwrite=*/1);
  const auto library = own_folder().parent_path() / "lib" / "libdba.so";
  if (fs::exists(library)) {
    setenv("DBA_LIBRARY", library.c_str(), /*overwrite=*/0);
  }
}

[[noreturn]] void become_python(const std::string& name, const std::vector<std::string>& words) {
  use_package_of_checkout();
  const auto program = python();
  std::vector<std::string> command{program, "-c", kRunModule, name};
  command.insert(command.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (auto& word : command) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  execvp(program.c_str(), arguments.data());
  throw std::runtime_error(name + ": is written in Python, and " + program + " could not be started (" +
                           std::strerror(errno) + "); install Python 3.10 or newer, or name one with DBA_PYTHON");
}

}  // namespace

void add_python_command(CLI::App& app, const std::string& name, const std::string& description) {
  auto* command = app.add_subcommand(name, description);
  command->set_help_flag();
  command->prefix_command();
  command->callback([command, name] { become_python(name, command->remaining()); });
}

}  // namespace dba::cli

#include "cli/zoo.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "dba/zoo.h"
#include "zoo/report.h"

namespace dba::cli {
namespace {

struct ZooArguments {
  std::string name;
  bool json = false;
};

}  // namespace

void add_zoo(CLI::App& app) {
  auto* command = app.add_subcommand("zoo", "List the attentions and what each can do");
  command->footer(
      "Examples:\n"
      "  dba zoo                     all of them, a line each\n"
      "  dba zoo longformer          its formula, paper and options\n"
      "  dba zoo --json              for programs");
  auto arguments = std::make_shared<ZooArguments>();
  command->add_option("name", arguments->name, "one member");
  command->add_flag("--json", arguments->json, "for programs");
  command->callback([arguments] {
    if (!arguments->name.empty()) {
      try {
        zoo::member(arguments->name);
      } catch (const c10::Error& error) {
        throw CLI::ValidationError("name", error.what_without_backtrace());
      }
    }
    std::cout << (arguments->json           ? zoo::json(arguments->name)
                  : arguments->name.empty() ? zoo::table()
                                            : zoo::page(arguments->name));
  });
}

}  // namespace dba::cli

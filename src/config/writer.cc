#include <algorithm>

#include "dba/config/config_file.h"
#include "value.h"

namespace dba::config {
namespace {

// A comment of lines that fit on a screen.
std::string comment(std::string_view text, const std::string& indent) {
  constexpr std::size_t kWidth = 100;
  std::string result;
  std::string line;
  while (!text.empty()) {
    const auto space = std::min(text.find(' '), text.size());
    if (!line.empty() && indent.size() + 2 + line.size() + 1 + space > kWidth) {
      result += indent + "# " + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + std::string(text.substr(0, space));
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return result + indent + "# " + line + "\n";
}

std::string default_of(const Key& key) {
  static const TrainConfig defaults;
  return written(defaults, key);
}

// Fit for a cell of a table, between backquotes.
std::string code(const std::string& text) {
  return text == "\"\"" ? "empty" : "`" + text + "`";
}

}  // namespace

std::string to_yaml(const TrainConfig& config, Comments comments) {
  const bool documented = comments == Comments::documented;
  std::string yaml;
  for (const Section& section : sections()) {
    std::string indent;
    if (documented)
      yaml += (yaml.empty() ? "" : "\n") + comment(section.documentation, "");
    if (!section.name.empty()) {
      yaml += std::string(section.name) + ":\n";
      indent = "  ";
    }
    for (const Key& key : keys()) {
      if (key.section() != section.name)
        continue;
      if (documented) {
        yaml += "\n" + comment(key.documentation, indent) +
                comment(expectation(key) + "; default " + default_of(key), indent);
      }
      yaml += indent + std::string(key.last_name()) + ": " + written(config, key) + "\n";
    }
  }
  return yaml;
}

std::string config_reference_markdown() {
  std::string page =
      "# Configuration\n\n"
      "`dba train --config file.yaml` reads one YAML file; what it leaves out keeps its default, and\n"
      "`--set section.key=value` overrides it. `dba train --print-config` shows the result without running. Every run\n"
      "keeps all its settings in `config.yaml` in its folder. This page is made from the table that the program "
      "itself\n"
      "reads by.\n";
  for (const Section& section : sections()) {
    const std::string title = section.name.empty() ? "Top level" : "`" + std::string(section.name) + "`";
    page += "\n## " + title + "\n\n" + std::string(section.documentation) +
            "\n\n| key | value | default | meaning |\n|---|---|---|---|\n";
    for (const Key& key : keys()) {
      if (key.section() != section.name)
        continue;
      page += "| `" + std::string(key.name) + "` | " + expectation(key) + " | " + code(default_of(key)) + " | " +
              std::string(key.documentation) + " |\n";
    }
  }
  return page;
}

}  // namespace dba::config

#pragma once

#include <string>

/// The zoo in words, for `dba zoo` and docs/zoo.md.
namespace dba::zoo {

/// One line per member: what may be asked of it.
std::string table();
/// The same as JSON, options included; with a name only that member.
std::string json(const std::string& name = "");
/// A member's paragraph, its paper, capabilities and options. Refuses an unknown name with the nearest one.
std::string page(const std::string& name);
/// docs/zoo.md.
std::string markdown();

}  // namespace dba::zoo

#pragma once

#include <string>
#include <vector>

namespace dba::bench {

/// Methods in a list, separated by commas outside brackets: "local(block=32),dba".
std::vector<std::string> split_methods(const std::string& list);

}  // namespace dba::bench
